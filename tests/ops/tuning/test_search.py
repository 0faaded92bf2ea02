"""The search for the fastest, on invented times: nothing here looks at a clock."""

import pytest

from blockscale.ops.tuning.search import (
    FIRST_ROUNDS,
    LAST_ROUNDS,
    MORE_ROUNDS,
    ROUNDS,
    search,
)


class Invented:
    """Gives the times of a list, then the last one for ever."""

    def __init__(self, *times):
        self.times, self.taken = list(times), 0

    def sample(self):
        self.taken += 1
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


def run(**watches):
    return search(watches, "rule", lambda: None)


def test_the_fastest_wins():
    found = run(rule=Invented(3.0), quick=Invented(2.0), slow=Invented(5.0))
    assert found.best == "quick"
    assert found.seconds == {"rule": 3.0, "quick": 2.0, "slow": 5.0}


def test_slow_ones_leave_after_the_first_rounds():
    watches = {"rule": Invented(1.0), "near": Invented(1.2), "far": Invented(1.3)}
    search(watches, "rule", lambda: None)
    assert watches["far"].taken == FIRST_ROUNDS
    assert watches["near"].taken == watches["rule"].taken == FIRST_ROUNDS + MORE_ROUNDS


def test_the_winner_meets_the_rules_choice_once_more():
    """However far behind that is, and the last rounds alone decide."""
    watches = {"rule": Invented(10.0), "quick": Invented(1.0)}
    rounds = []
    found = search(watches, "rule", lambda: rounds.append(1))
    assert watches["rule"].taken == FIRST_ROUNDS + LAST_ROUNDS
    assert len(rounds) == ROUNDS
    assert found.seconds["rule"] == 10.0


def test_one_that_was_only_lucky_does_not_win():
    early = FIRST_ROUNDS + MORE_ROUNDS
    found = run(rule=Invented(2.0), lucky=Invented(*[1.9] * early, 2.5))
    assert found.best == "rule"
    assert found.seconds == {"rule": 2.0, "lucky": 2.5}


def test_one_sample_that_was_disturbed_does_not_count():
    found = run(rule=Invented(2.0), quick=Invented(1.0, 90.0, 1.0, 90.0, 1.0))
    assert found.best == "quick"
    assert found.seconds["quick"] == 1.0


def test_rounds_are_interleaved_in_an_order_that_changes_and_comes_back():
    def order():
        seen = []

        class Noting(Invented):
            def __init__(self, name):
                super().__init__(1.0)
                self.name = name

            def sample(self):
                seen.append(self.name)
                return super().sample()

        search({name: Noting(name) for name in "abcd"}, "a", lambda: None)
        return seen

    first = order()
    rounds = [tuple(first[i : i + 4]) for i in range(0, len(first), 4)]
    assert all(set(each) == set("abcd") for each in rounds)
    assert len(set(rounds)) > 3
    assert order() == first


@pytest.mark.parametrize("times", [(1.0, 1.0), (1.0, 0.99)])
def test_the_same_samples_give_the_same_answer(times):
    rule, other = times
    results = [run(rule=Invented(rule), other=Invented(other)) for _ in range(3)]
    assert results[0] == results[1] == results[2]
    assert results[0].best == ("rule" if rule == other else "other")
