"""One known problem: what a kernel is launched with, and what is wrong with its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels import Config, Kernel, Parts
from blockscale.problem import Problem


@dataclass(frozen=True)
class Case:
    """Everything is on the CPU.

    inputs    what a launch is called with before its outputs; Parts, tensors and tuples of them
    outputs   memory that it writes to, full of what no kernel writes; None where a launch gives
              back memory of its own
    trouble   what is wrong with the outputs; None where they are right
    """

    name: str
    problem: Problem
    weights: tuple[Parts, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Tensor | None, ...] | None
    trouble: Callable[[tuple[Any, ...]], str | None]

    def run(self, kernel: Kernel, config: Config, device: torch.device, frozen: bool) -> str | None:
        """What is wrong with a kernel's answer on a device. Errors of its launch are raised."""
        weights = _moved(self.weights, device)  # which a launch need not keep
        launch = kernel.bind(self.problem, config, weights, frozen)
        outputs = _moved(self.outputs or (), device)
        returned = launch(*_moved(self.inputs, device), *outputs)
        found = returned if self.outputs is None else outputs
        return self.trouble(_moved(tuple(found), torch.device("cpu")))


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, Parts):
        return Parts(*(_moved(each, device) for each in value))
    if isinstance(value, tuple):
        return tuple(_moved(each, device) for each in value)
    return value
