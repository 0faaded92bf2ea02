"""Speeds side by side, on a machine that is made up: its clock is told, nothing is timed."""

import itertools

import pytest
import torch

from blockscale.models import Speed, load_model, race, take_turns


def test_a_machine_that_slows_down_does_not_turn_the_sign():
    """The second model is 1.5 times as fast; the machine loses a tenth with each measurement."""
    slowed = itertools.count()
    rates = {"original": 10.0, "small": 15.0}
    found = take_turns(
        {name: name for name in rates}, lambda name: rates[name] * 0.9 ** next(slowed), rounds=6
    )
    assert found["small"].ratio(found["original"]) == pytest.approx(1.5, rel=0.1)
    assert found["small"].differs(found["original"])
    assert found["original"].differs(found["small"])


def test_each_model_goes_first_in_turn():
    order = []
    take_turns({name: name for name in "abc"}, lambda name: order.append(name) or 1.0, rounds=4)
    assert "".join(order) == "abcbcacababc"


def test_rounds_that_disagree_are_noise():
    steady = Speed((10.0, 10.0, 10.0))
    assert not Speed((11.0, 12.0, 9.9)).differs(steady)
    assert not steady.differs(steady)
    assert Speed((11.0, 12.0, 10.1)).differs(steady)
    assert Speed((9.0, 5.0, 9.9)).differs(steady)


def test_a_race_of_models(folder):
    model = load_model(folder, torch.float32)
    found = race({"a": model, "b": model}, torch.tensor([[2, 3]]), tokens=2, rounds=3)
    assert [len(each.samples) for each in found.values()] == [3, 3]
    assert all(rate > 0 for each in found.values() for rate in each.samples)
