"""The Triton kernel without a GPU: what it refuses, which configs it has, what it compiles to, and
its results by Triton's interpreter."""

import importlib.metadata
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from math import isnan
from pathlib import Path

import pytest

import blockscale as bs
import hanging
from blockscale.formats import CATALOGUE
from blockscale.formats.elements import FLOATS, SCALES
from blockscale.kernels.matmul import cublas, portable
from blockscale.kernels.matmul.portable.encoding import SmallFloat, multiplies_codes
from blockscale.layouts import canonical
from blockscale.ops import choose
from blockscale.ops.choose import answers
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu, triton_refusal

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton is installed")


def coded(fmt):
    return str(Kind(fmt, canonical(fmt)))


def problem(fmt, **facts):
    every = {"verb": "matmul", "m": 1, "n": 4096, "k": 4096, "x": "bfloat16", "out": "bfloat16"}
    every |= {"w": coded(fmt), "device": gpu("sm_80"), **facts}
    return Problem(**every)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_few_rows_of_canonical_weights_are_its_own(arch):
    for each in CATALOGUE.values():
        assert choose(problem(each, device=gpu(arch))).kernel is portable


def test_many_rows_are_left_to_whoever_decodes_once():
    asked = problem(bs.NVFP4, m=512)
    assert portable.refuses(asked) == "is for up to 96 rows of a matrix, not 512"
    assert choose(asked).kernel is cublas
    assert "rows of float32" in portable.refuses(problem(bs.NVFP4, m=17, x="float32"))
    assert portable.refuses(replace(asked, deterministic=True)) is None  # cublas refuses
    experts = replace(asked, groups=64, ragged=True)
    assert portable.refuses(experts) is None  # 8 rows each


def test_prepared_weights_are_left_to_the_kernels_they_are_prepared_for():
    asked = problem(bs.NVFP4, w=str(Kind(bs.NVFP4, bs.layouts.layout("fragments/fragments"))))
    assert "reads rows as files hold them" in portable.refuses(asked)


def test_what_it_cannot_express_is_refused():
    wide = bs.NVFP4.replace(block=512)
    assert portable.refuses(problem(wide)) == "reads blocks of 16 to 256, not 512"
    assert "16 to 256, not 8" in portable.refuses(problem(bs.NVFP4.replace(block=8)))
    odd = bs.MXFP8.replace(element="e3m3")
    assert "4, 6, 8 bits in bits, not 7" in portable.refuses(problem(odd))
    assert "would be rounded to" in portable.refuses(problem(bs.NVFP4, x=coded(bs.KBIT4)))
    assert "65536" in portable.refuses(problem(bs.NVFP4, groups=65536))
    cpu = replace(gpu("sm_80"), arch="cpu")
    assert portable.refuses(problem(bs.NVFP4, device=cpu)) == "runs on NVIDIA GPUs; this is cpu"
    old = replace(gpu("sm_80"), arch="sm_75")
    assert "older than sm_80" in portable.refuses(problem(bs.NVFP4, device=old))


@pytest.fixture
def live(monkeypatch):
    """A GPU of this machine, where nothing is missing unless a test takes it away."""
    module = sys.modules["blockscale.runtime.triton_refusal"]
    monkeypatch.setattr(module, "version", lambda name: "3.6.0")
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(module.Path, "is_file", lambda path: True)
    triton_refusal.cache_clear()
    yield module
    triton_refusal.cache_clear()


def test_what_is_missing_on_this_machine_is_named(live, monkeypatch):
    here = replace(gpu("sm_90"), live=True)
    assert triton_refusal(here) is None

    def refusal():
        triton_refusal.cache_clear()
        return triton_refusal(here)

    monkeypatch.setattr(live.Path, "is_file", lambda path: False)
    assert "Python's C headers" in refusal()
    monkeypatch.delenv("CC")
    monkeypatch.setattr(live.shutil, "which", lambda name: None)
    assert "neither gcc nor clang" in refusal()
    monkeypatch.setattr(live, "version", lambda name: "3.5.1")
    assert refusal() == "needs Triton 3.6 or newer, and 3.5.1 is installed"

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(live, "version", absent)
    assert refusal() == "needs Triton, which is not installed: pip install 'triton>=3.6'"
    monkeypatch.setenv("BLOCKSCALE_CUDA", "0")
    assert refusal() == "BLOCKSCALE_CUDA=0 turns it off"


def test_without_triton_the_next_kernel_serves_and_the_reason_is_told(live, monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(live, "version", absent)
    triton_refusal.cache_clear()
    asked = problem(bs.NVFP4, device=replace(gpu("sm_90"), live=True))
    told = {each.kernel: each.refusal for each in answers(asked)}
    assert "pip install 'triton>=3.6'" in told["portable"]


@pytest.mark.parametrize("element", [*FLOATS.values(), *SCALES.values()], ids=lambda e: e.name)
def test_a_small_float_is_its_bits_in_float32(element):
    """The arithmetic of device/decode.py, in Python."""
    if element.bits > 8:
        pytest.skip("float32 is not decoded")
    described = SmallFloat.of(element)
    for code, expected in enumerate(element.values):
        magnitude = code & ((1 << (described.exponent + described.mantissa)) - 1)
        exponent, fraction = (
            magnitude >> described.mantissa,
            magnitude & ((1 << described.mantissa) - 1),
        )
        in_float32 = fraction * 2.0 ** (-126 - described.mantissa)
        if exponent:
            in_float32 = (1 + fraction * 2.0**-described.mantissa) * 2.0 ** (exponent - 127)
        value = in_float32 * described.rebias
        if described.least and magnitude == 0:
            value = described.least
        if magnitude == described.infinity:
            value = float("inf")
        if (
            described.first_nan >= 0
            and (magnitude if described.signed else code) >= described.first_nan
        ):
            value = float("nan")
        if described.signed and code != magnitude:
            value = -value
        assert value == expected or (isnan(value) and isnan(expected)), code


def test_tensor_cores_take_codes_where_both_operands_have_the_same_scales():
    taken = {
        (w.name, x.name)
        for w in CATALOGUE.values()
        for x in CATALOGUE.values()
        if multiplies_codes(w, x)
    }
    mx = ("mxfp4", "mxfp8", "mxfp8_e5m2")
    assert taken == {("nvfp4", "nvfp4"), *((w, x) for w in mx for x in mx)}


@pytest.mark.parametrize(
    ("arch", "native"),
    [
        ("sm_80", False),
        ("sm_90", False),
        ("sm_100", True),
        ("sm_103", True),
        ("sm_120", True),
        ("sm_121", False),
    ],
)
def test_block_scales_go_to_tensor_cores_that_take_them(arch, native):
    asked = problem(bs.NVFP4, x=coded(bs.NVFP4), m=64, device=gpu(arch))
    assert {config.native for config in portable.configs(asked)} == {native}
    assert (portable.refuses(replace(asked, m=8192)) is None) == native  # decoding costs nothing
    weight_only = problem(bs.NVFP4, m=64, device=gpu(arch))
    assert not any(config.native for config in portable.configs(weight_only))


def test_configs_are_few_and_legal():
    for fmt in CATALOGUE.values():
        for m, x in ((1, "bfloat16"), (16, "float16"), (80, "bfloat16"), (4, "float32")):
            found = portable.configs(problem(fmt, m=m, x=x))
            assert 2 <= len(found) <= 6 or x == "float16"
            for config in found:
                assert config.tile_k % fmt.block == 0
                assert config.tile_k == fmt.block or not config.scales_sums(fmt)
                assert config.splits == 1 or config.splits * config.tile_k <= 4096


def test_k_is_split_where_tiles_are_too_few_for_the_gpu():
    assert portable.configs(problem(bs.NVFP4, n=512))[0].splits > 1
    assert portable.configs(problem(bs.NVFP4, n=65536))[0].splits == 1
    ragged = problem(bs.NVFP4, n=512, groups=8, ragged=True)
    assert portable.configs(ragged)[0].splits == 1


# What each target multiplies by, and a format and verb, so that together they are all there.
COMPILED = {
    "sm_80": (problem(bs.KBIT5, m=16), "mma.sync.aligned.m16n8k16"),
    "sm_86": (problem(bs.MXFP6_E2M3, x="float16"), "mma.sync.aligned.m16n8k16"),
    "sm_89": (
        problem(bs.MXFP4, m=64, groups=8, ragged=True, gated=True, activation="silu", bias=True),
        "mma.sync.aligned.m16n8k16",
    ),
    "sm_90": (problem(bs.NVFP4), "wgmma.mma_async"),
    "sm_100": (problem(bs.NVFP4, x=coded(bs.NVFP4)), "tcgen05.mma.*kind::mxf4nvf4.*block_scale"),
    "sm_103": (problem(bs.MXFP4, x=coded(bs.MXFP8)), "tcgen05.mma.*kind::mxf8f6f4.*block_scale"),
    "sm_120": (problem(bs.NVFP4, x=coded(bs.NVFP4)), "mma.sync.*kind::mxf4nvf4.*block_scale"),
    "sm_121": (problem(bs.MXFP8, x=coded(bs.MXFP8)), "mma.sync.aligned.m16n8k16"),
}


@needs_triton
@pytest.mark.parametrize("arch", COMPILED)
def test_it_compiles_for_every_target(arch, monkeypatch):
    """Copies of weights run ahead of products, 4 to 16 bytes at a time."""
    from kernels.triton_compiler import ptx

    monkeypatch.setenv("TRITON_CACHE_DIR", str(ROOT / "build" / "triton"))
    asked, instruction = COMPILED[arch]
    asked = replace(asked, device=gpu(arch))
    code = ptx(asked, portable.configs(asked)[0])
    assert re.search(instruction, code)
    assert "cp.async" in code


@needs_triton
def test_what_adds_split_sums_compiles(monkeypatch):
    from kernels.triton_compiler import ptx

    monkeypatch.setenv("TRITON_CACHE_DIR", str(ROOT / "build" / "triton"))
    asked = problem(bs.NVFP4, n=512, gated=True, activation="gelu")
    assert "st.global" in ptx(asked, portable.configs(asked)[0], "add_splits")


@needs_triton
def test_results_by_the_interpreter():
    """In a process of its own: see tests/interpreted/test_portable.py."""
    major, minor, *_ = importlib.metadata.version("triton").split(".")
    if (int(major), int(minor)) < (3, 9):
        pytest.skip("Triton's interpreter before 3.9 needs numpy below 2.4, and casts e4m3 wrongly")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", ROOT / "tests" / "interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, timeout=10 * hanging.SECONDS, cwd=ROOT,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:]
