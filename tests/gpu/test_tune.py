"""Tuning on a GPU. Skipped where there is none."""

import pytest
import torch

import blockscale as bs
from blockscale import ops
from blockscale.ops.tuning import stored
from blockscale.ops.tuning.candidates import candidates
from blockscale.runtime import tuned
from products import check, check_gated, exact

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def forget():
    tuned.forget()
    ops.choose.cache_clear()


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Of results; compiled kernels stay where they are."""
    monkeypatch.setattr(tuned._kept, "folder", lambda: tmp_path / "tuned")
    monkeypatch.delenv("BLOCKSCALE_TUNED")
    forget()
    yield
    forget()


def weight(format, *shape):
    q = bs.quantize(torch.randn(*shape) / shape[-1] ** 0.5, format)
    return q, q.prepare("cuda")


@pytest.mark.parametrize("format", [bs.NVFP4, bs.KBIT4], ids=str)
@pytest.mark.parametrize("m", [1, 16])
def test_a_product(format, m):
    q, w = weight(format, 512, 1024)
    x = torch.randn(m, 1024).bfloat16()
    assert "chosen   by rule" in str(bs.explain(x.cuda(), w))
    found = bs.tune(x.cuda(), w)
    assert found.rule.seconds > 0
    assert len(found.trials) > 2
    assert not [trial for trial in found.trials if "wrong" in trial.left_out], str(found)
    told = bs.explain(x.cuda(), w)
    assert "tuned on " in told.choice.reason
    if found.wins:
        assert told.choice[:2] == found.best.candidate
    check(bs.matmul(x.cuda(), w).cpu(), x.double(), exact(q), torch.bfloat16, x.dtype)
    forget()
    assert bs.explain(x.cuda(), w).choice == told.choice


def test_whatever_wins_gives_the_right_result():
    """Every candidate is made the stored one in turn."""
    q, w = weight(bs.NVFP4, 512, 1024)
    x = torch.randn(8, 1024).bfloat16()
    bs.tune(x.cuda(), w, store=False)  # compiles them, many at a time
    problem = bs.explain(x.cuda(), w).problem
    (machine,) = {stored.machine_of(problem.target)}
    rule, *others = candidates(problem)
    for each in others:
        result = tuned.Result(
            problem=stored.facts(problem),
            sources=ops.source_hash(problem.target),
            best=tuned.Measured(each.kernel.NAME, each.fields, 1.0),
            rule=tuned.Measured(rule.kernel.NAME, rule.fields, 2.0),
            date="2026-11-15",
            versions={},
        )
        tuned.keep(machine, result)
        forget()
        assert bs.explain(x.cuda(), w).choice[:2] == each
        check(bs.matmul(x.cuda(), w).cpu(), x.double(), exact(q), torch.bfloat16, x.dtype)


def test_experts_stay_on_the_device():
    """Panels for cuBLAS read the sizes on the host, which a graph cannot hold."""
    gate, up = (weight(bs.NVFP4, 4, 256, 512) for _ in range(2))
    sizes = torch.tensor([1, 0, 4, 2], dtype=torch.int32)
    x = torch.randn(7, 512).bfloat16()
    found = bs.tune(x.cuda(), gate[1], up[1], group_sizes=sizes.cuda())
    (panels,) = [each for each in found.trials if each.candidate.kernel.NAME == "cublas"]
    assert "a CUDA graph cannot hold it" in panels.left_out
    assert found.rule.seconds > 0
    y = bs.grouped_gated_matmul(x.cuda(), gate[1], up[1], sizes.cuda()).cpu()
    rows = torch.split(torch.arange(7), sizes.tolist())
    for expert, each in enumerate(rows):
        if len(each):
            check_gated(y[each], x[each], gate[0][expert], up[0][expert], "silu")


def test_a_graph_captured_afterwards_holds_what_was_tuned():
    q, w = weight(bs.MXFP4, 512, 1024)
    x = torch.randn(1, 1024).bfloat16()
    bs.tune(x.cuda(), w)
    held = x.cuda()
    bs.matmul(held, w)  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = bs.matmul(held, w)
    y.zero_()
    graph.replay()
    check(y.cpu(), x.double(), exact(q), torch.bfloat16, x.dtype)


def test_not_while_a_graph_is_captured():
    _, w = weight(bs.NVFP4, 64, 128)
    x = torch.randn(1, 128, device="cuda").bfloat16()
    bs.matmul(x, w)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        bs.matmul(x, w)
        with pytest.raises(RuntimeError, match="a CUDA graph is being captured"):
            bs.tune(x, w)
    assert not tuned.results()


def test_random_numbers_of_the_caller_are_left_alone():
    _, w = weight(bs.NVFP4, 64, 128)
    x = torch.randn(1, 128, device="cuda").bfloat16()
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    bs.tune(x, w)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(torch.cuda.get_rng_state(), before[1])


def test_float32_rows_have_the_panels_alone():
    _, w = weight(bs.NVFP4, 64, 128)
    found = bs.tune(torch.randn(3, 128, device="cuda"), w)
    assert "there is no other way" in found.verdict
