"""Each name of torch's private API can go, and everything still works."""

import pytest
import torch
from torch.autograd import forward_ad

import blockscale as bs
from blockscale.ops import dispatcher
from blockscale.runtime import torch_private
from blockscale.tensor import plan_cache

QUESTIONS = {
    "_len_torch_dispatch_stack": torch._C,
    "_len_torch_function_stack": torch._C,
    "_functorch": torch._C,
    "peek_interpreter_stack": torch._C._functorch,
    "_dispatch_tls_is_dispatch_key_included": torch._C,
    "PreDispatch": torch._C.DispatchKey,
    "_current_level": forward_ad,
}


@pytest.mark.fault(
    "torch renames something of its private API",
    outcome="the public way is taken, or calls go through the dispatcher",
)
@pytest.mark.parametrize("name", QUESTIONS)
def test_where_torch_cannot_be_asked_calls_go_through_the_dispatcher(monkeypatch, name):
    with monkeypatch.context() as removed:
        removed.delattr(QUESTIONS[name], name)
        found = torch_private.find_questions()
    assert found is None
    monkeypatch.setattr(dispatcher, "QUESTIONS", found)
    q, x = bs.quantize(torch.randn(32, 64), bs.NVFP4).prepare(), torch.randn(2, 64)
    assert not dispatcher.can_skip_dispatcher([x])
    y = bs.matmul(x, q)
    assert not q.plans
    monkeypatch.undo()
    assert torch.equal(y, bs.matmul(x, q))
    assert q.plans


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (torch._C, "_functorch"),
        (torch._C._functorch, "get_interpreter_stack"),
        (torch._C._functorch, "TransformType"),
        (torch._functorch.pyfunctorch, "temporarily_clear_interpreter_stack"),
    ],
)
def test_where_transforms_are_not_told_of_they_are_refused(monkeypatch, place, name):
    with monkeypatch.context() as removed:
        removed.delattr(place, name)
        asked, outside = torch_private.find_transforms()
    monkeypatch.setattr(dispatcher, "transforms_take_gradients", asked)
    q, x = bs.quantize(torch.randn(32, 64), bs.NVFP4), torch.randn(2, 64)
    with outside(), pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda x: bs.matmul(x, q).sum())(x)


def test_traces_are_asked_about_in_public(monkeypatch):
    monkeypatch.delattr(torch._C, "_is_tracing")
    questions = torch_private.find_questions()
    assert questions is not None
    assert questions[0][0] is torch.jit.is_tracing


def test_the_device_the_stream_and_a_pause_have_public_ways(monkeypatch):
    for name in ("_cuda_getDevice", "_cuda_getCurrentRawStream"):
        monkeypatch.delattr(torch._C, name, raising=False)
    monkeypatch.delattr(torch.cuda, "_sleep")

    class Stream:
        cuda_stream = 11

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream())
    assert torch_private.find_current_device()() == 3
    assert torch_private.find_raw_stream()(0) == 11
    assert torch_private.find_sleep()(1000) is None


def test_without_versions_no_weight_counts_as_unchanged(monkeypatch):
    told = []
    monkeypatch.setattr(plan_cache, "_counts_versions", False)
    monkeypatch.setattr(plan_cache.ops, "make_plan", lambda call, kept, frozen: told.append(frozen))
    q = bs.quantize(torch.randn(32, 64), bs.NVFP4).prepare().freeze()
    bs.matmul(torch.randn(2, 64), q)
    assert told == [False]
    assert torch_private.counts_versions()


@pytest.mark.parametrize("verb", ["matmul", "linear", "quantize", "tensor_scale"])
def test_numbers_that_stand_in_memory_with_the_other_sign(verb):
    """As the imaginary part of a conjugate does."""
    q, x = bs.quantize(torch.randn(32, 64), bs.NVFP4).prepare(), torch.randn(2, 64)
    bias = torch.randn(32)
    for _ in range(3):
        bs.linear(x, q, bias)
        bs.matmul(x, q)
    negated = torch.complex(torch.zeros(2, 64), x).conj().imag
    assert negated.is_neg()
    if verb == "matmul":
        assert torch.equal(bs.matmul(negated, q), bs.matmul(-x, q))
    elif verb == "linear":
        assert torch.equal(bs.linear(x, q, torch._neg_view(bias)), bs.linear(x, q, -bias))
    elif verb == "quantize":
        assert bs.quantize(negated, bs.NVFP4) == bs.quantize(-x, bs.NVFP4)
    else:
        assert q.tensor_scale is not None
        other = bs.QTensor(
            q.format, q.shape, q.codes, q.scale, torch._neg_view(-q.tensor_scale), None, q.layout
        )
        assert torch.equal(bs.matmul(x, other), bs.matmul(x, q))
