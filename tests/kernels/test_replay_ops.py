"""Calls of ops that C code repeats: found by where their weights are."""

import gc
import sys

import pytest
import torch

import blockscale as bs
from blockscale import ops
from blockscale.kernels.cuda.layout import fragments
from blockscale.ops import by_address, replay
from replay_machine import NEEDS_EXTENSION, K, N, Watching, rows

pytestmark = NEEDS_EXTENSION


@pytest.fixture(autouse=True)
def _nothing_known():
    by_address._known.clear()


def described(q, x, bias=None):
    return ops.MatmulCall(ops.plain(x), [q.operand], [bias], None, "", "", (), None, x.dtype)


def settle(machine, q, x, bias=None):
    """The op's arguments, of whose calls there is a replay."""
    call = described(q, x, bias)
    arguments, known = ops.op_arguments(call), by_address._known_of(call)
    key = by_address._key((x, bias, None, None))
    known.plans[key] = machine.plan_by_address(q, x, bias)
    for _ in range(3):
        ops.matmul(*arguments)
    assert len(known.replays) == 1
    return arguments


@pytest.fixture
def q():
    """Not frozen: an op does not know who owns its weights."""
    return bs.quantize(torch.randn(N, K), bs.NVFP4).pack(fragments(bs.NVFP4))


@pytest.fixture
def by_python(monkeypatch):
    """Calls that Python took."""
    taken, run_plan = [], by_address._run_plan
    monkeypatch.setattr(
        by_address, "_run_plan", lambda *each: taken.append(each) or run_plan(*each)
    )
    return taken


@pytest.mark.parametrize("biased", [False, True])
def test_a_call_like_one_before_it_is_launched_without_python(machine, q, by_python, biased):
    x, bias = rows(4), torch.randn(N) if biased else None
    arguments = settle(machine, q, x, bias)
    taken, launched = len(by_python), len(machine.launches)
    other = rows(4)
    y = ops.matmul(other, *arguments[1:])
    assert y.shape == (4, N)
    assert (len(by_python), len(machine.launches)) == (taken, launched + 1)
    facts, attributes, function, _ = machine.launches[-1]
    assert (facts, attributes, function) == machine.launches[-2][:3]


def test_other_weights_words_and_sizes_are_not_mixed_up(machine, q, monkeypatch):
    arguments = settle(machine, q, rows(1))
    told = []
    monkeypatch.setattr(by_address, "run_call", lambda call: told.append(call))
    x, w, text, n, k, *rest = arguments
    changed = {
        "weights": (x, [each.clone() for each in w], text, n, k, *rest),
        "one of the weights": (x, [*w[:2], w[2].clone()], text, n, k, *rest),
        "the order": (x, [w[0], w[2], w[1]], text, n, k, *rest),
        "strides": (x, [w[0].t(), *w[1:]], text, n, k, *rest),
        "the shape": (x, [w[0].view(-1), *w[1:]], text, n, k, *rest),
        "words": (x, w, text.replace("bfloat16", "float16"), n, k, *rest),
        "n": (x, w, text, n - 1, k, *rest),
        "k": (x, w, text, n, k - 16, *rest),
    }
    launched = len(machine.launches)
    for call in changed.values():
        ops.matmul(*call)
    assert len(told) == len(changed)
    assert len(machine.launches) == launched


def test_weights_that_moved_are_not_launched(machine, q, monkeypatch):
    arguments = settle(machine, q, rows(1))
    told = []
    monkeypatch.setattr(by_address, "run_call", lambda call: told.append(call))
    q.codes.data = q.codes.clone()
    ops.matmul(*arguments)
    q.codes.untyped_storage().resize_(0)
    ops.matmul(*arguments)
    assert len(told) == 2


@pytest.mark.parametrize("watcher", [Watching, bs.deterministic], ids=lambda each: each.__name__)
def test_watchers_and_wishes_take_python(machine, q, by_python, watcher, monkeypatch):
    arguments = settle(machine, q, rows(1))
    launched, told = len(machine.launches), []
    monkeypatch.setattr(by_address, "make_plan", lambda *each: told.append(each))
    monkeypatch.setattr(by_address, "run_checked", lambda call: torch.empty(1, N))
    with watcher():
        ops.matmul(*arguments)
    assert len(machine.launches) == launched + (watcher is Watching)
    assert len(told) == (watcher is not Watching)


def test_a_launch_that_fails_is_told_by_python(machine, q):
    arguments = settle(machine, q, rows(1))
    machine.status = 1
    with pytest.raises(RuntimeError):
        ops.matmul(*arguments)


def test_places_say_where_tensors_are():
    places = replay.bytes_of_places
    one, two = torch.zeros(4, 6, dtype=torch.uint8), torch.zeros(3)
    assert places([one, two]) == places((one, two)) == places([one.view(4, 6), two])
    every = [one, two]
    for other in (
        [one],
        [two, one],
        [one.clone(), two],
        [one[:3], two],
        [one.view(6, 4), two],
        [one.t(), two],
        [one.view(torch.int8), two],
        [one, two.view(torch.int32)],
        [one[:, :3], two],
    ):
        assert places(other) != places(every)
    for unknown in ([one.to("meta")], [torch.zeros(0)], [one] * 9, [None], None, "ab", ["ab"]):
        assert places(unknown) is None


def test_calls_of_an_op_leak_nothing(machine, q):
    """Replayed, taken by Python, dispatched, and refused."""
    arguments = settle(machine, q, rows(1))
    x, w, text, n, k, *_ = arguments
    known = next(iter(by_address._known.values()))
    held = [x, w, *w, text, n, k, known, known.replays, known.replays[0], ops.matmul._op]
    leaf = torch.nn.Parameter(x)

    def call():
        ops.matmul(*arguments)
        with Watching():
            ops.matmul(*arguments)
        with torch.enable_grad():
            assert ops.matmul._op(leaf, *arguments[1:]) is not None
        with pytest.raises(TypeError):
            ops.matmul._op(x)
        replay.bytes_of_places(w)

    call()
    before = [sys.getrefcount(each) for each in held]
    for _ in range(50):
        call()
    machine.launches.clear()
    gc.collect()
    assert [sys.getrefcount(each) for each in held] == before
