"""Times for choosing between kernels, with an invented clock."""

import pytest
import torch

from blockscale.runtime import timing
from blockscale.runtime.timing import CpuStopwatch, ring_bytes


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def spending(clock, seconds, log, name):
    def call():
        clock[0] += seconds
        log.append(name)

    return call


def test_short_calls_fill_a_sample_and_go_round_the_ring(clock):
    log = []
    watch = CpuStopwatch([spending(clock, 0.001, log, name) for name in "abc"])
    log.clear()
    assert watch.sample() == pytest.approx(0.001)
    assert len(log) == 1 + 4  # the first is not timed
    assert set(log) == set("abc")


def test_a_long_call_is_a_sample(clock):
    log = []
    watch = CpuStopwatch([spending(clock, 0.5, log, "a")])
    log.clear()
    assert watch.sample() == 0.5
    assert len(log) == 2


def test_what_only_first_calls_do_is_not_counted(clock):
    costs = iter([9.0, 9.0])

    def call():
        clock[0] += next(costs, 0.002)

    assert CpuStopwatch([call]).sample() == pytest.approx(0.002)


def test_a_ring_leaves_room_for_others(monkeypatch):
    assert 0 < ring_bytes(torch.device("cpu")) <= 512 << 20
    monkeypatch.setattr(timing, "available_memory", lambda: 4000)
    assert ring_bytes(torch.device("cpu")) == 1000
