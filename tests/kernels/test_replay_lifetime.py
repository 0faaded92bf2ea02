"""Calls that C code repeats: what they hold, threads, and what fails on the way."""

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.layout import fragments
from blockscale.runtime import torch_private
from blockscale.runtime.cuda import functions
from replay_machine import (
    LOADED,
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


def test_weights_that_are_gate_and_up_of_each_other_are_let_go(machine):
    one, two = (experts()[0] for _ in range(2))
    x = rows(5)
    for gate, up in ((one, two), (two, one)):
        machine.plan(gate, x, up=(up, None))
        for _ in range(3):
            bs.gated_matmul(x, gate, up)
        assert len(gate.replays) == 1
    seen = [weakref.ref(each.codes) for each in (one, two)]
    del one, two, gate, up
    gc.collect()
    assert [each() for each in seen] == [None, None]


def test_nothing_is_leaked(machine, q):
    x, bias = rows(1), torch.randn(N)
    plan = machine.plan(q, x, bias)
    settle(x, q, bias)
    held = [x, bias, q, q.codes, q.replays[0], plan, None, False, True, 0, torch.empty_like]
    held += [torch.bfloat16, plan.out_shape, plan.choice, plan.problem, Watching]
    odd = unaligned()

    def call():
        assert replayed(q, x, bias) is not None
        assert replayed(q, x) is None
        assert replayed(q, odd, bias) is None
        with torch.enable_grad():
            assert replayed(q, x, torch.nn.Parameter(bias)) is None
        machine.status = 1
        assert replayed(q, x, bias) is None
        machine.status = 0

    call()
    before = [sys.getrefcount(each) for each in held]
    for _ in range(1000):
        call()
        machine.launches.clear()
    after = [sys.getrefcount(each) for each in held]
    assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True)), (before, after)
    out = weakref.ref(replayed(q, x, bias))
    assert out() is None


def test_it_goes_with_its_weights(machine):
    q = bs.quantize(torch.randn(N, K), bs.NVFP4).pack(fragments(bs.NVFP4))
    x = rows(1)
    plan = weakref.ref(machine.plan(q, x))
    settle(x, q)
    codes = weakref.ref(q.codes)
    del q
    gc.collect()
    assert plan() is None
    assert codes() is None


def test_threads(machine, q):
    every = [rows(m) for m in (1, 2, 3)]
    for x in every:
        machine.plan(q, x)
        settle(x, q)

    def work(number):
        x = every[number % 3]
        with torch.no_grad():
            for i in range(300):
                if i % 50 == number:
                    q.replays[:] = list(reversed(q.replays))
                assert bs.matmul(x, q).shape == (len(x), N)
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


def test_interruptions_are_not_lost(machine, q, monkeypatch):
    x, interrupted = rows(1), []

    def stream(index):
        if interrupted:
            raise KeyboardInterrupt
        return 7

    monkeypatch.setattr(torch_private, "raw_stream", stream)
    machine.plan(q, x)
    settle(x, q)
    interrupted.append(True)
    with pytest.raises(KeyboardInterrupt):
        replayed(q, x)
    interrupted.clear()
    assert replayed(q, x) is not None


def test_running_out_of_memory(machine, q, monkeypatch):
    x, full = rows(1), []

    def unless_full(really):
        def empty(*arguments, **options):
            if full:
                raise torch.OutOfMemoryError("full")
            return really(*arguments, **options)

        return empty

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, unless_full(getattr(torch, name)))
    machine.plan(q, x)
    settle(x, q)
    launched = len(machine.launches)
    full.append(True)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        bs.matmul(x, q)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        replayed(q, x)
    assert len(machine.launches) == launched
    full.clear()
    assert replayed(q, x) is not None


def test_what_the_driver_refuses_is_told_by_python(machine, q, monkeypatch):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    told = []
    monkeypatch.setattr(functions, "check", lambda status, doing: told.append((status, doing)))
    machine.status = 1
    launched = len(machine.launches)
    assert replayed(q, x) is None
    bs.matmul(x, q)
    assert told[0][0] == 1
    assert "stream.cu" in told[0][1]
    assert len(machine.launches) == launched


def test_nonsense_is_refused(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    for arguments in ((), ((), x, None), ([x], x, None)):
        with pytest.raises(TypeError):
            LOADED.run(*arguments)
    with pytest.raises(TypeError):
        LOADED.Replay(key=1)
    with pytest.raises((TypeError, ValueError)):
        LOADED.use(None, None, None, None)
