"""What the two tables of `normal_float` make of Gaussian and of heavy-tailed data.

Computed when the page is written, not stored: the numbers are drawn by numpy's frozen generator,
and quantising gives the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from blockscale.formats import CATALOGUE, NormalFloat, normal_float
from blockscale.tensor import quantize

SHAPE = (512, 256)
DATA: dict[str, Callable[[np.random.RandomState], np.ndarray]] = {
    "Gaussian": lambda draws: draws.standard_normal(SHAPE),
    "Student-t(5)": lambda draws: draws.standard_t(5, SHAPE),
}
RULES = ("absmax", "mse")


def sqnr(data: str, bits: int, method: NormalFloat, scale: str) -> float:
    """Signal to quantisation noise of a weight, in dB."""
    values = DATA[data](np.random.RandomState(0))
    weight = torch.from_numpy(values.astype(np.float32))
    format = CATALOGUE[f"kbit{bits}"].replace(element=normal_float(bits, method))
    return decibels(weight, quantize(weight, format, scale=scale).dequantize())


def decibels(exact: Tensor, approximate: Tensor) -> float:
    exact = exact.double()
    noise = (exact - approximate.double()).square().sum()
    return float(10 * torch.log10(exact.square().sum() / noise))


def codebooks() -> str:
    """The table of docs/compat.md."""
    lines = [
        "| data | block scales | codebook | k=2 | k=3 | k=4 | k=5 |",
        "|---|---|---|---|---|---|---|",
    ]
    for data, scale, method in product(DATA, RULES, get_args(NormalFloat)):
        cells = [f"{sqnr(data, bits, method, scale):.2f}" for bits in (2, 3, 4, 5)]
        lines.append(f"| {data} | `{scale}` | `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)
