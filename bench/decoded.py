"""What the bytes of a weight stand for: decoded fast, and at both ends by the definition too.

The definition in plain torch takes a second for a large weight of some layouts, so it decodes the
first and last rows alone. A kernel that gives other bits there is not believed.
"""

from __future__ import annotations

import torch
from torch import Tensor

import blockscale as bs
from bench.conversions import only_reference

_ROWS = 32  # a multiple of what every layout can cut


def decoded(q: bs.QTensor) -> Tensor:  # float32 [n, k]
    values = q.dequantize(torch.float32)
    n = q.shape[0]
    for rows in (slice(0, min(_ROWS, n)), slice((n - 1) // _ROWS * _ROWS, n)):
        with only_reference("dequantize"):
            wanted = q[rows].dequantize(torch.float32)
        if not torch.equal(values[rows], wanted):
            raise ValueError(f"rows {rows.start} to {rows.stop} of {q} decode to other values")
    return values
