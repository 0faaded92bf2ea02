"""Calls that C code repeats: what it leaves to Python."""

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.layout import fragments
from blockscale.tensor import plan_cache
from replay_machine import (
    NEEDS_EXTENSION,
    K,
    N,
    Watching,
    experts,
    replayed,
    rows,
    settle,
    unaligned,
)

pytestmark = NEEDS_EXTENSION


def test_tensor_scales_are_watched_like_codes(machine, q):
    """The kernel reads them ahead of the one before, as it reads weights."""
    x = rows(1)
    plan = machine.plan(q, x)
    settle(x, q)
    assert replayed(q, x) is not None
    q.tensor_scale.mul_(2)
    assert replayed(q, x) is None
    bs.matmul(x, q)
    assert (
        plan.launch._launched.arguments.from_buffer_copy(machine.launches[-1][3]).weights_unchanged
        == 0
    )


def test_another_up_activation_or_sizes_are_left_to_python(machine, unread, monkeypatch):
    gate, up, x = experts(), experts(), rows(5)
    sizes = torch.tensor([1, 0, 4])
    machine.plan(gate, x, up=(up, None), sizes=sizes)
    for _ in range(3):
        bs.grouped_gated_matmul(x, gate, up, sizes)
    assert replayed(gate, x, sizes=sizes, up=up, activation="silu") is not None
    assert replayed(gate, x, sizes=sizes, up=experts(), activation="silu") is None
    assert replayed(gate, x, sizes=sizes, up=up, activation="gelu") is None
    assert replayed(gate, x, sizes=sizes.int(), up=up, activation="silu") is None
    assert replayed(gate, x, sizes=sizes.repeat(2)[::2], up=up, activation="silu") is None
    assert replayed(gate, x, sizes=None, up=up, activation="silu") is None
    assert replayed(gate, x, torch.randn(3, N), sizes=sizes, up=up, activation="silu") is None
    with pytest.raises(TypeError, match="group_sizes is None"):
        bs.grouped_gated_matmul(x, gate, up, None)
    for value, checked in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("BLOCKSCALE_CHECK", value)
        found = replayed(gate, x, sizes=sizes, up=up, activation="silu")
        assert (found is None) == checked == bs.runtime.checks_enabled()
    monkeypatch.setenv("BLOCKSCALE_CHECK", "yes")  # which Python refuses
    assert replayed(gate, x, sizes=sizes, up=up, activation="silu") is None


class Subclass(torch.Tensor):
    pass


UNUSUAL = {
    "another number of rows": lambda: rows(2),
    "another number of dimensions": lambda: rows(1, 1),
    "another dtype": lambda: rows(1, dtype=torch.float16),
    "another device": lambda: rows(1).to("meta"),
    "unaligned": unaligned,
    "rows that are not aligned": lambda: torch.empty(1, K + 1, dtype=torch.bfloat16)[:, :K],
    "columns apart": lambda: torch.empty(1, 2 * K, dtype=torch.bfloat16)[:, ::2],
    "sparse": lambda: rows(1).to_sparse(),
    "the other sign in memory": lambda: torch._neg_view(rows(1)),
    "a subclass": lambda: rows(1).as_subclass(Subclass),
    "no tensor": lambda: "x",
    "nothing": lambda: None,
}


@pytest.mark.parametrize("reason", UNUSUAL)
def test_x_that_is_left_to_python(machine, q, reason):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    launched = len(machine.launches)
    assert replayed(q, UNUSUAL[reason]()) is None
    assert len(machine.launches) == launched
    assert replayed(q, x) is not None


def test_biases_that_are_left_to_python(machine, q):
    x, bias = rows(1), torch.randn(N)
    machine.plan(q, x, bias)
    settle(x, q, bias)
    for other in (None, torch.randn(1), bias.bfloat16(), torch.randn(2 * N)[::2], "bias"):
        assert replayed(q, x, other) is None
    assert replayed(q, x, torch.randn(N)) is not None
    assert replayed(q, x, torch.nn.Parameter(bias)) is not None
    with torch.enable_grad():
        assert replayed(q, x, torch.nn.Parameter(bias)) is None


class Listening(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize(
    "watcher", [Watching, Listening, bs.deterministic], ids=lambda each: each.__name__
)
def test_watchers_and_wishes(machine, q, watcher):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    with watcher():
        assert replayed(q, x) is None
    assert replayed(q, x) is not None


def test_transforms_and_traces(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    told = []

    def ask(y):
        told.append(replayed(q, x))
        return y

    torch.vmap(ask)(torch.ones(2))
    torch.jit.trace(ask, torch.ones(2), check_trace=False)
    assert told == [None, None]
    assert replayed(q, x) is not None


def test_gradients(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    with torch.enable_grad():
        assert replayed(q, x) is not None
        assert replayed(q, torch.nn.Parameter(x)) is None
        assert replayed(q, rows(1).requires_grad_()) is None
    assert replayed(q, torch.nn.Parameter(x)) is not None


@pytest.mark.parametrize("forbidden", [False, True])
def test_compilers_never_see_it(monkeypatch, forbidden):
    def forbid(*_):
        raise AssertionError

    canonical = bs.quantize(torch.randn(32, 64), bs.NVFP4)
    if forbidden:
        monkeypatch.setattr(plan_cache, "_run_replay", forbid)
        with pytest.raises(AssertionError):
            bs.matmul(torch.randn(1, 64), canonical)
    compiled = torch.compile(
        lambda x: bs.linear(x, canonical) + bs.matmul(x, canonical), backend="eager", fullgraph=True
    )
    assert compiled(torch.randn(1, 64)).shape == (1, 32)


def test_weights_that_change_settle_again(machine, q):
    x = rows(1)
    plan = machine.plan(q, x)
    settle(x, q)
    settled = []
    for change in (lambda: None, lambda: q.scale.fill_(3), lambda: q.codes.zero_()):
        before = machine.kernels
        change()
        del machine.launches[:]
        for _ in range(5):
            bs.matmul(x, q)
        kinds = [
            plan.launch._launched.arguments.from_buffer_copy(each[3]) for each in machine.launches
        ]
        settled.append([each.weights_unchanged for each in kinds])
        assert machine.kernels - before == (0 if len(settled) == 1 else 1)
        assert len(q.replays) == 1
        assert replayed(q, x) is not None
    assert settled == [5 * [1], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1]]


@pytest.mark.parametrize("frozen", [False, True])
def test_weights_of_inference_have_no_version(machine, frozen):
    with torch.inference_mode():
        q = bs.quantize(torch.randn(N, K), bs.NVFP4).pack(fragments(bs.NVFP4))
        q = q.freeze() if frozen else q
        x = rows(1)
        plan = machine.plan(q, x)
        settle(x, q)
        out = replayed(q, x)
        assert out.is_inference()
    kind = plan.launch._launched.arguments
    assert kind.from_buffer_copy(machine.launches[-1][3]).weights_unchanged == frozen


def test_weights_that_nobody_has_frozen_are_read_after_the_kernel_ahead(machine):
    """Writes by `.data`, by numpy and by other libraries leave no trace that a call could see."""
    q = bs.quantize(torch.randn(N, K), bs.NVFP4).pack(fragments(bs.NVFP4))
    x = rows(1)
    plan = machine.plan(q, x)
    settle(x, q)
    for _ in range(3):
        assert replayed(q, x) is not None
    told = [
        plan.launch._launched.arguments.from_buffer_copy(each[3]).weights_unchanged
        for each in machine.launches
    ]
    assert told == 6 * [0]


MOVES = {
    "data": lambda tensor, other: setattr(tensor, "data", other),
    "set_": lambda tensor, other: tensor.set_(other),
    "resize_": lambda tensor, other: tensor.untyped_storage().resize_(2 * tensor.nbytes),
}


@pytest.mark.fault(
    "a weight is given other memory after calls on it were planned",
    outcome="the plan is made anew; no launch has the old address",
)
@pytest.mark.parametrize("part", ["codes", "scale", "tensor_scale"])
@pytest.mark.parametrize("way", MOVES)
@pytest.mark.parametrize("frozen", [False, True])
def test_weights_that_move_are_left_to_python(machine, part, way, frozen):
    q = bs.quantize(torch.randn(N, K), bs.NVFP4).pack(fragments(bs.NVFP4)).clone()
    q = q.freeze() if frozen else q
    x = rows(1)
    plan = machine.plan(q, x)
    settle(x, q)
    assert replayed(q, x) is not None
    tensor = getattr(q, part)
    MOVES[way](tensor, tensor.clone())
    assert replayed(q, x) is None
    assert not plan.is_in_place
    launched = len(machine.launches)
    (key,) = q.plans
    assert plan_cache.cached_plan(key, [q]) is None
    assert not q.plans
    assert not q.replays
    assert len(machine.launches) == launched


def test_another_choice_of_kernel(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    machine.forget_choices()
    machine.choice = machine.choice._replace(reason="tuned")
    assert replayed(q, x) is None
    plan = machine.plan(q, x)
    settle(x, q)
    assert [each.kept for each in q.replays] == [plan]
    assert replayed(q, x) is not None


def test_more_dimensions_than_it_compares_are_left_to_python(machine, q):
    x = rows(*[1] * 7, 2)
    machine.plan(q, x)
    for _ in range(5):
        assert bs.matmul(x, q).shape == (*[1] * 7, 2, N)
    assert not q.replays


def test_forward_gradients_are_left_to_python(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    assert replayed(q, x) is not None
    with torch.autograd.forward_ad.dual_level():
        assert replayed(q, x) is None
