"""Problems are keys: equal facts find the same answers, and every fact counts."""

from dataclasses import fields, replace

import pytest
import torch

from blockscale.problem import Problem
from blockscale.runtime import Device, device_of, gpu

FACTS = {"verb": "matmul", "m": 1, "n": 2, "k": 32, "x": "float32", "w": "w", "out": "float32"}
PROBLEM = Problem(**FACTS, device=device_of(torch.device("cpu")))


def test_equal_facts_make_equal_keys():
    again = Problem(**FACTS, device=device_of(torch.device("cpu")))
    assert again == PROBLEM
    assert {PROBLEM: "found"}[again] == "found"
    assert tuple(FACTS.values()) != PROBLEM


@pytest.mark.parametrize("name", [each.name for each in fields(Problem)])
def test_every_fact_counts(name):
    other = {str: "other", int: 7, bool: True, Device: gpu("h200")}[type(getattr(PROBLEM, name))]
    changed = replace(PROBLEM, **{name: other})
    assert changed != PROBLEM
    assert changed not in {PROBLEM}
