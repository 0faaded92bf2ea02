"""Quantised x for kernels that take bfloat16: another launch decodes it into memory first."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.kernels.contract import Parts
from blockscale.kernels.dequantize.cuda import decode
from blockscale.problem import Problem

# Microseconds beside the time of the bytes; predicted, no sweep has it yet.
_LAUNCH = 2.0
_DRAM = 0.85  # of the data sheet's rate


def decoded(problem: Problem, x: Parts) -> Tensor:
    """Rows of numbers, without their tensor scales."""
    values = torch.empty(problem.rows, problem.k, dtype=torch.bfloat16, device=x.codes.device)
    parts = Parts(x.codes[None], x.scale[None], None, x.codebook)
    decode(problem.x, parts, values[None], pdl=problem.device.pdl)
    return values


def decoding_time(problem: Problem) -> float:
    """Microseconds that such a launch should take; none for x that is not quantised."""
    if "@" not in problem.x:
        return 0.0
    moved = problem.rows * problem.k * (problem.x_kind.format.bits_per_value / 8 + 2)
    return _LAUNCH + moved / (problem.device.dram_bytes_per_s * _DRAM) * 1e6
