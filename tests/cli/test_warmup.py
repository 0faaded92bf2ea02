"""`blockscale warmup`: the kernels of a checkpoint, compiled before they are needed."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import blockscale as bs
from blockscale import cli, ops
from blockscale.checkpoint import Checkpoint
from blockscale.cli.products import Products
from blockscale.kernels import KERNELS, Config, FunctionLaunch
from blockscale.kernels.cuda.layout import fragments
from blockscale.runtime import device_of, gpu
from blockscale.runtime.cuda import Build, CompilationError, cuda_refusal, is_cached, load_nvrtc
from checkpoint.models import llama, write_model

SOURCES = Path(__file__).parents[1] / "runtime" / "sources"
needs_nvrtc = pytest.mark.skipif(isinstance(load_nvrtc(), str), reason=str(load_nvrtc()))


def run(*args):
    result = CliRunner().invoke(
        cli.commands, ["warmup", *map(str, args)], catch_exceptions=False, env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0
    return result.output


@pytest.fixture
def model(tmp_path):
    """A Llama whose linear layers are in NVFP4: four shapes of weights."""
    source = write_model(tmp_path / "source", llama(2))
    command = ["quantize", str(source), str(tmp_path / "model"), "--format", "nvfp4"]
    CliRunner().invoke(cli.commands, command, catch_exceptions=False)
    return tmp_path / "model"


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A kernel of a test that is compiled for each number of rows, up to eight."""
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "cubins"))
    shutil.copytree(SOURCES, tmp_path / "sources")
    source = str(tmp_path / "sources" / "sample.cu")

    def build(rows):
        return Build(source, "sample", (("SPILLS", 0), ("MULTIPLIES", 1), ("FACTOR", rows)))

    made = SimpleNamespace(
        NAME="sample",
        source=Path(source),
        build=build,
        refuses=lambda problem: (
            cuda_refusal(problem.device) or ("m > 8" if problem.m > 8 else None)
        ),
        configs=lambda problem: [Config()],
        reads=lambda described, device: fragments(described),
        bind=lambda problem, config, weights=(), frozen=False: FunctionLaunch(
            None, builds=lambda: [build(problem.m)]
        ),
    )
    for verb in KERNELS:
        monkeypatch.setitem(KERNELS, verb, (made, KERNELS[verb][-1]))
    ops.choose.cache_clear()
    yield made
    ops.choose.cache_clear()


@needs_nvrtc
def test_everything_is_compiled_once(model, kernel, tmp_path):
    out = run(model, "--target", "sm_90", "--rows", "1,2,64")
    assert "12 products on sm_90: 8 by sample, 4 by reference" in out
    assert f"2 kernels in {tmp_path / 'cubins'}: 2 compiled in " in out
    assert is_cached(kernel.build(1), "sm_90")
    assert is_cached(kernel.build(2), "sm_90")
    assert not is_cached(kernel.build(1), "sm_80")
    out = run(model, "--target", "sm_90", "--rows", "1,2,4", "--jobs", 1)
    assert "3 kernels" in out
    assert "1 compiled in " in out
    assert "2 there before" in out


@needs_nvrtc
def test_a_kernel_that_does_not_compile_is_an_error(model, kernel):
    kernel.source.write_text("nonsense")
    with pytest.raises(CompilationError, match=r"sample\.cu:sample"):
        run(model, "--target", "sm_90")


@needs_nvrtc
def test_what_cannot_be_done_is_said(model, kernel, tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="warmup for sm_75: sm_75 is older than sm_80"):
        run(model, "--target", "sm_75")
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="sees no CUDA device"):
            run(model)
    with pytest.raises(RuntimeError, match="runs on NVIDIA GPUs; this is cpu"):
        run(model, "--device", "cpu")
    for rows in ("", "0", "1,x", "1,,2"):
        with pytest.raises(ValueError, match="give numbers of rows such as 1,2,4"):
            run(model, "--target", "sm_90", "--rows", rows)
    with pytest.raises(ValueError, match="use one of float32, bfloat16, float16"):
        run(model, "--target", "sm_90", "--dtype", "int8")
    with pytest.raises(ValueError, match="holds no quantised weights"):
        run(tmp_path / "source", "--target", "sm_90")
    monkeypatch.setenv("BLOCKSCALE_CACHE_MB", "0")
    with pytest.raises(RuntimeError, match="compiled kernels are not kept"):
        run(model, "--target", "sm_90")


def test_a_kernel_that_is_not_compiled_at_run_time_needs_nothing(model):
    problems = Products((1, 4), "bfloat16", "silu", device_of(torch.device("cpu"))).of(
        Checkpoint(model)
    )
    assert len(problems) == 8
    assert [ops.builds(problem) for problem in problems] == [()] * 8


def products_of(tmp_path, tensors):
    bs.save(tensors, tmp_path / "checkpoint")
    return Products((3,), "float16", "silu", gpu("sm_90")).of(Checkpoint(tmp_path / "checkpoint"))


def test_a_linear_layer_is_a_product(tmp_path):
    weight = bs.quantize(torch.randn(32, 64), bs.MXFP4)
    found = products_of(
        tmp_path, {"a.weight": weight, "a.bias": torch.zeros(32), "b.weight": weight, "c": weight}
    )
    assert [(each.verb, each.m, each.n, each.k, each.bias) for each in found] == [
        ("matmul", 3, 32, 64, True),
        ("matmul", 3, 32, 64, False),
    ]
    assert {each.x for each in found} == {each.out for each in found} == {"float16"}
    assert {each.w_kind.layout for each in found} == {ops.prepared_layout(bs.MXFP4, gpu("sm_90"))}


GATED = ("grouped_gated_matmul", 3, 32, 64, 4, True)
DOWN = ("grouped_matmul", 3, 64, 32, 4, True)


@pytest.mark.parametrize(
    "shapes",
    [
        {"experts.gate": (4, 32, 64), "experts.up": (4, 32, 64), "experts.down": (4, 64, 32)},
        {"mlp.experts.gate_up_proj": (4, 64, 64), "mlp.experts.down_proj": (4, 64, 32)},
        {
            f"mlp.experts.{i}.{name}.weight": shape
            for i in range(4)
            for name, shape in {"w1": (32, 64), "w2": (64, 32), "w3": (32, 64)}.items()
        },
    ],
    ids=["of this library", "fused", "one by one"],
)
def test_experts_are_grouped_products(tmp_path, shapes):
    found = products_of(
        tmp_path,
        {name: bs.quantize(torch.randn(shape), bs.KBIT4) for name, shape in shapes.items()},
    )
    facts = {(each.verb, each.m, each.n, each.k, each.groups, each.ragged) for each in found}
    assert facts == {GATED, DOWN}
    assert {each.activation for each in found} == {"silu", ""}
