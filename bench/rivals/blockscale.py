"""This library: prepared weights in one format, x in 16 or 32 bits or rounded to int8."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

import blockscale as bs
from bench.rivals.contract import Prepared, Rival
from bench.timing import Call
from blockscale.formats import INT8


@dataclass(frozen=True)
class Blockscale(Rival):
    format: bs.Format
    int8: bool = False
    dtype: torch.dtype = torch.bfloat16
    role: str = "ours"

    @property
    def name(self) -> str:
        return self.format.name.upper() + (", int8 x" if self.int8 else "")

    @property
    def x_block(self) -> int | None:
        return INT8.block if self.int8 else None

    def prepare(self, w: Tensor) -> Quantized:
        q = _quantize(w, self.format)
        return Quantized(q, "int8" if self.int8 else None).copy()


@lru_cache(maxsize=1)  # the exact and the int8 product of a format take the same weight
def _quantize(w: Tensor, format: bs.Format) -> bs.QTensor:
    return bs.quantize(w, format).prepare().freeze()  # as modules hold weights


@dataclass(frozen=True)
class Quantized(Prepared):
    q: bs.QTensor
    x_format: str | None

    @property
    def nbytes(self) -> int:
        return self.q.nbytes

    def copy(self) -> Quantized:
        q = replace(self.q, codes=self.q.codes.clone(), scale=self.q.scale.clone())
        return Quantized(q, self.x_format)

    def decoded(self) -> Tensor:
        return self.q.dequantize(torch.float32)

    def bind(self, x: Tensor) -> Call:
        return lambda: bs.matmul(x, self.q, x_format=self.x_format)

    def kernel(self, x: Tensor) -> str:
        explanation = bs.explain(x, self.q, x_format=self.x_format)
        runs = next(answer for answer in explanation.answers if answer.refusal is None)
        return f"{runs.kernel}: {runs.config}"
