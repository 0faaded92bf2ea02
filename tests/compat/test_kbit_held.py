"""Products of plain tensors: what is made of them is held, and never too long."""

import gc
import weakref

import pytest
import torch

import blockscale as bs
from blockscale import compat, ops
from blockscale.compat import kbit
from blockscale.tensor import QTensor, plan_cache

K_DIM, N = 96, 48


@pytest.fixture
def weight():
    packed, absmax, table = compat.quantize_kbit(torch.randn(N, K_DIM), 4)
    return [*compat.repack_for_gemm(packed, absmax, K_DIM, N, 4), table.clone()]


@pytest.fixture
def made(monkeypatch):
    """The QTensors that are made from here on."""
    check, found = QTensor.__post_init__, []

    def counted(q):
        found.append(weakref.ref(q))
        check(q)

    monkeypatch.setattr(QTensor, "__post_init__", counted)
    return found


def gemm(x, weight):
    return compat.kbit_gemm(x, *weight, K_DIM, N, 4)


def test_one_qtensor_and_one_plan_serve_all_calls(weight, made, monkeypatch):
    plans, make_plan = [], ops.make_plan

    def counted(*arguments):
        plans.append(make_plan(*arguments))
        return plans[-1]

    monkeypatch.setattr(plan_cache.ops, "make_plan", counted)
    x = torch.randn(1, K_DIM)
    ys = [gemm(x, weight) for _ in range(4)]
    assert len(made) == 1
    assert len(plans) == 1
    assert plans[0] is not None
    assert all(torch.equal(y, ys[0]) for y in ys)


def test_the_kernel_is_that_of_a_prepared_weight(weight, made):
    x = torch.randn(1, K_DIM)
    gemm(x, weight)
    held = made[0]()
    own = bs.quantize(torch.randn(N, K_DIM), bs.KBIT4).prepare()
    assert held.layout == own.layout
    assert bs.explain(x, held).kernel == bs.explain(x, own).kernel


@pytest.mark.parametrize("part", [0, 1, 2])
def test_what_is_written_to_a_part_is_seen(weight, part):
    x = torch.randn(1, K_DIM)
    before = gemm(x, weight)
    changed = [each.clone() for each in weight]
    changed[part] = changed[part].flip(-1) if part < 2 else changed[part] / 2
    expected = gemm(x, changed)
    assert not torch.equal(before, expected)
    weight[part].copy_(changed[part])
    assert torch.equal(gemm(x, weight), expected)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_part_that_was_placed_elsewhere_is_found_there(weight, part):
    x = torch.randn(1, K_DIM)
    gemm(x, weight)
    changed = [each.clone() for each in weight]
    changed[part] = changed[part].flip(-1) if part < 2 else changed[part] / 2
    expected = gemm(x, changed)
    weight[part].data = changed[part].clone()
    assert torch.equal(gemm(x, weight), expected)


def test_a_table_in_half_precision_is_cast_again_when_it_changes(weight):
    x = torch.randn(1, K_DIM)
    codes, scale, table = weight
    half = table.half()
    gemm(x, [codes, scale, half])
    half.div_(2)
    assert torch.equal(gemm(x, [codes, scale, half]), gemm(x, [codes, scale, half.float()]))


def test_other_numbers_are_other_weights(weight, made):
    x = torch.randn(1, K_DIM)
    gemm(x, weight)
    with pytest.raises(ValueError, match="N=48, K_dim=96, k=3 need"):
        compat.kbit_gemm(x, *weight, K_DIM, N, 3)


def test_nothing_is_kept_alive(weight, made):
    held = len(kbit._held)
    gemm(torch.randn(1, K_DIM), weight)
    assert len(kbit._held) == held + 1
    parts = [weakref.ref(part) for part in weight]
    gc.disable()  # no cycle may be what lets them go
    try:
        weight.clear()
        assert [part() for part in parts] == [None] * 3
        assert made[0]() is None
    finally:
        gc.enable()
    assert len(kbit._held) == held


@pytest.mark.parametrize("part", [0, 1, 2])
def test_what_is_held_goes_with_the_first_of_its_parts(weight, made, part):
    gemm(torch.randn(1, K_DIM), weight)
    del weight[part]
    assert made[0]() is None


def test_tensors_of_inference_mode(weight, made):
    """They do not count what is written to them: bytes are read in place, casts are not held."""
    x = torch.randn(1, K_DIM)
    with torch.inference_mode():
        codes, scale, table = (part.clone() for part in weight)
        half = table.half()
        first = gemm(x, [codes, scale, table])
        table.div_(2)
        assert torch.equal(gemm(x, [codes, scale, table]) * 2, first)
        assert len(made) == 1
        gemm(x, [codes, scale, half])
        half.div_(2)
        y = gemm(x, [codes, scale, half])
    assert torch.equal(y, gemm(x, [codes, scale, half.float()]))


def test_gradients_reach_x_after_a_call_in_inference_mode(weight):
    with torch.inference_mode():
        gemm(torch.randn(1, K_DIM), weight)
    x = torch.randn(2, K_DIM, requires_grad=True)
    gemm(x, weight).sum().backward()
    assert x.grad is not None
