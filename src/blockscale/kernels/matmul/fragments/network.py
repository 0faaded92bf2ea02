"""A small network that says how far a predicted time errs, as learned from what was measured.

Counted work explains a time to some per cent, and configs near the best of a problem differ by
less. What is left is not noise: it depends on how CTAs fill the SMs, how much is in flight, which
bound is near which. A network (layers of tanh) maps such facts of a launch to the logarithm of
measured over predicted time. It is fitted to stored sweeps of one GPU, and applies to that GPU
alone: on others the prediction stands as it is.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from math import exp, tanh
from pathlib import Path
from typing import NamedTuple

from blockscale.runtime import Device

if sys.version_info >= (3, 12):
    from math import sumprod
else:
    from operator import mul

    def sumprod(row: list[float], values: list[float]) -> float:
        total: float = sum(map(mul, row, values))
        return total


class Layer(NamedTuple):
    weights: list[list[float]]  # one row for each output
    biases: list[float]


class Network(NamedTuple):
    target: str
    sms: int
    layers: list[Layer]

    def knows(self, device: Device) -> bool:
        """Whether it learned from such a GPU."""
        return (device.arch, device.sms) == (self.target, self.sms)

    def factor(self, facts: list[float]) -> float:
        """Measured over predicted time, as it is to be expected."""
        return exp(evaluate(self.layers, facts))


def evaluate(layers: list[Layer], values: list[float]) -> float:
    *hidden, last = layers
    for weights, biases in hidden:
        values = [
            tanh(sumprod(row, values) + bias) for row, bias in zip(weights, biases, strict=True)
        ]
    return sumprod(last.weights[0], values) + last.biases[0]


@lru_cache(maxsize=8)
def read_network(path: Path) -> Network:
    stored = json.loads(path.read_text())
    layers = [Layer(weights, biases) for weights, biases in stored["layers"]]
    return Network(stored["target"], stored["sms"], layers)
