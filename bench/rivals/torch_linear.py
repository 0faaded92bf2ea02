"""torch's `F.linear`: the baseline in bfloat16, and float32, which some CPUs do better."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from bench.rivals.contract import Prepared, Rival
from bench.timing import Call


@dataclass(frozen=True)
class TorchLinear(Rival):
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return str(self.dtype).replace(".", " ")

    def prepare(self, w: Tensor) -> Plain:
        return Plain(w.to(self.dtype, copy=True))


@dataclass(frozen=True)
class Plain(Prepared):
    w: Tensor

    @property
    def nbytes(self) -> int:
        return self.w.nbytes

    def copy(self) -> Plain:
        return Plain(self.w.clone())

    def decoded(self) -> Tensor:
        return self.w.float()

    def bind(self, x: Tensor) -> Call:
        x = x.to(self.w.dtype)
        return lambda: linear(x, self.w)
