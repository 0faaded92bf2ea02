"""Plain 4-bit integers with one scale for 32 values, as torch and ONNX Runtime both take them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 32
OFFSET = 8  # is added to a code where it is stored without a sign


class Int4(NamedTuple):
    codes: Tensor  # int32 [n, k], -8 to 7
    scale: Tensor  # [n, k // 32]

    def decoded(self) -> Tensor:  # float32 [n, k]
        blocks = self.codes.unflatten(1, (-1, BLOCK)).float()
        return (blocks * self.scale.float()[..., None]).flatten(1)


def quantize_int4(w: Tensor, scale_dtype: torch.dtype) -> Int4:
    """Symmetric: the largest of each block becomes 7 or -7."""
    blocks = w.float().unflatten(1, (-1, BLOCK))
    scale = (blocks.abs().amax(-1) / 7).to(scale_dtype)
    codes = (blocks / scale.float()[..., None]).round_().clamp_(-OFFSET, OFFSET - 1)
    return Int4(codes.to(torch.int32).flatten(1), scale)
