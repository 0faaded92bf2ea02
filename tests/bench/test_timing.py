"""Statistics and turns, with a clock that says what it is told."""

import pytest

from bench import timing
from bench.timing import CpuStopwatch, Spread, copies, ratio, ring_bytes, spread, take_turns


class Time:
    """Stands still unless someone takes some."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def take(self, seconds):
        self.now += seconds

    def stopwatch(self, name, seconds):
        return Scripted(self, name, seconds)


class Scripted:
    """A stopwatch of something that takes so long; the time knows who was asked when."""

    def __init__(self, time, name, seconds):
        self.time, self.name, self.seconds = time, name, seconds

    def warm_up(self):
        return self.seconds

    def sample(self):
        self.time.log.append(self.name)
        self.time.take(self.seconds)
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    fake = Time()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: fake.now)
    monkeypatch.setattr(timing, "wait_for_quiet", lambda: None)
    return fake


def test_spread_is_the_median_and_the_quartiles():
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]).percent == pytest.approx(100 / 3)


def test_one_sample_has_no_spread():
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0, 1)


def test_one_slow_round_does_not_move_the_median():
    assert spread([2.0, 2.0, 900.0, 2.0, 2.0]).median == 2.0


def test_ratios_are_taken_within_rounds():
    # The machine slowed down by 10 in the second round, for both. Medians alone would say 2 / 1.
    assert ratio([2.0, 30.0, 3.0], [1.0, 10.0, 1.0]) == spread([2.0, 3.0, 3.0])


def test_a_rival_that_was_timed_once_has_a_ratio_of_medians():
    assert ratio([100.0], [1.0, 2.0, 4.0]) == Spread(50.0, 50.0, 50.0, 1)


def test_everyone_is_asked_once_a_round(clock):
    samples = take_turns({name: clock.stopwatch(name, 1.0) for name in "abc"}, seconds=12.0)
    assert samples == {name: [1.0] * 4 for name in "abc"}
    rounds = [clock.log[i : i + 3] for i in range(0, 12, 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) > 1  # in another order


def test_there_are_enough_rounds_for_quartiles_and_not_too_many(clock):
    few = take_turns({name: clock.stopwatch(name, 1.0) for name in "abc"}, seconds=1.0)
    assert {len(taken) for taken in few.values()} == {timing.MIN_ROUNDS}
    many = take_turns({"a": clock.stopwatch("a", 1e-6)}, seconds=60.0)
    assert len(many["a"]) == timing.MAX_ROUNDS


def test_a_rival_slower_than_the_time_limit_is_not_asked_again(clock):
    watches = {name: clock.stopwatch(name, s) for name, s in (("slow", 9.0), ("fast", 1.0))}
    assert take_turns(watches, seconds=5.0) == {"slow": [9.0], "fast": [1.0] * 5}
    assert "slow" not in clock.log


def test_calls_go_round_the_ring(clock):
    taken = []

    def call(index):
        def run():
            taken.append(index)
            clock.take(0.001)

        return run

    watch = CpuStopwatch([call(0), call(1), call(2)])
    assert watch.warm_up() == pytest.approx(0.001)
    assert watch.sample() == pytest.approx(0.001)
    assert taken == [i % 3 for i in range(len(taken))]
    assert len(taken) > 6


def test_first_calls_are_not_timed(clock, monkeypatch):
    """Which may find out what is kept with a weight. They are not waited for for ever."""
    seen = set()

    def call(index):
        def run():
            clock.take(0.001 if index in seen else 0.1)
            seen.add(index)

        return run

    watch = CpuStopwatch([call(i) for i in range(8)])
    assert watch.warm_up() == pytest.approx(0.001)
    assert watch.sample() == pytest.approx(0.001)
    assert len(seen) == 8
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.25)
    seen.clear()
    CpuStopwatch([call(i) for i in range(100)]).warm_up()
    assert len(seen) < 8


def test_a_ring_covers_its_space():
    assert copies(100, 250) == 3
    assert copies(1000, 250) == 1
    assert copies(1, 10**9) == timing.MAX_COPIES


def test_rings_stay_within_half_of_the_free_memory(monkeypatch):
    monkeypatch.setattr(timing, "available_memory", lambda: 1000)
    assert ring_bytes(10) * 10 <= 500
    monkeypatch.setattr(timing, "available_memory", lambda: 2**50)
    monkeypatch.setattr(timing, "last_level_cache", lambda: 2**30)
    assert ring_bytes(10) == 2**31
