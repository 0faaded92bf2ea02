"""How much is put between two events, without a GPU: what passes between them is invented."""

import pytest

from blockscale.runtime.cuda import EventStopwatch, GraphStopwatch, timing


class Graph:
    def __init__(self, calls):
        self.calls = list(calls)

    def replay(self):
        timing._run(self.calls)


@pytest.fixture
def spent(monkeypatch):
    """Seconds that calls have taken."""
    now = [0.0]

    def between_events(work):
        before = now[0]
        work()
        return now[0] - before

    monkeypatch.setattr(timing, "_between_events", between_events)
    monkeypatch.setattr(timing, "capture", Graph)
    monkeypatch.setattr(timing, "_warm_up", timing._run)
    return now


@pytest.mark.parametrize("stopwatch", [EventStopwatch, GraphStopwatch])
@pytest.mark.parametrize(
    ("seconds", "copies", "calls"),
    [(1e-5, 32, 160), (1e-3, 4, 4), (1e-7, 100, 2000), (1e-6, 1500, 1500), (0.0, 1, 2000)],
)
def test_a_sample_is_long_and_goes_round_whole_rings(spent, stopwatch, seconds, copies, calls):
    met = []

    def call(copy):
        spent[0] += seconds
        met.append(copy)

    ring = [lambda copy=copy: call(copy) for copy in range(copies)]
    watch = stopwatch(ring)
    met.clear()
    assert watch.sample() == pytest.approx(seconds)
    assert len(met) == calls
    assert met == list(range(copies)) * (calls // copies)
