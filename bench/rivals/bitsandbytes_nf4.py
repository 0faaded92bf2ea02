"""bitsandbytes' Linear4bit: NF4 codes with one scale for 64 values.

In evaluation mode the first call repacks the weight where the CPU has a kernel for it, in place and
with its scales rounded to bfloat16. The scales are rounded here before, so that the weight means
the same on every CPU, and a layer that was never called is kept to decode it. On a GPU the weight
stays bfloat16 until it is quantised, since it is decoded to the dtype it had.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.rivals.contract import Prepared, Rival, import_failure
from bench.timing import Call


@dataclass(frozen=True)
class Bitsandbytes(Rival):
    name: str = "bitsandbytes nf4"

    def missing(self) -> str:
        return import_failure("bitsandbytes")

    def prepare(self, w: Tensor) -> Linear4bit:
        from bitsandbytes import nn

        n, k = w.shape
        layer = nn.Linear4bit(k, n, False, torch.bfloat16, False, "nf4", device="meta")  # noqa: FBT003
        values = w if w.is_cuda else w.float()
        weight = nn.Params4bit(
            values, requires_grad=False, compress_statistics=False, quant_type="nf4"
        )
        layer.weight = weight.to(w.device)  # quantises
        state = layer.weight.quant_state
        state.absmax = state.absmax.bfloat16().float()
        layer.eval()
        return Linear4bit(layer, _ready(layer))


@dataclass(frozen=True)
class Linear4bit(Prepared):
    untouched: Any
    layer: Any

    @property
    def nbytes(self) -> int:
        weight = self.layer.weight
        return weight.nbytes + weight.quant_state.absmax.nbytes

    def copy(self) -> Linear4bit:
        return Linear4bit(self.untouched, _ready(self.untouched))

    def decoded(self) -> Tensor:
        from bitsandbytes.functional import dequantize_4bit

        weight = self.untouched.weight
        return dequantize_4bit(weight.data, weight.quant_state).float()

    def bind(self, x: Tensor) -> Call:
        return lambda: self.layer(x)


def _ready(untouched: Any) -> Any:
    """A copy that has done what its first call does."""
    layer = deepcopy(untouched)
    layer(torch.zeros(1, layer.in_features, dtype=torch.bfloat16, device=layer.weight.device))
    return layer
