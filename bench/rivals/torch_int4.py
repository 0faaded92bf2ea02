"""torch's own 4-bit product for CPUs, which torchao's int4 weight-only linear calls."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.rivals.contract import Prepared, Rival
from bench.rivals.int4 import BLOCK, OFFSET, Int4, quantize_int4
from bench.timing import Call

_OPS = ("_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu")
_INNER_K_TILES = 1  # the packing for CPUs has none, but the op asks


@dataclass(frozen=True)
class TorchInt4(Rival):
    name: str = "torch int4"

    def missing(self) -> str:
        lacking = [op for op in _OPS if not hasattr(torch.ops.aten, op)]
        return f"torch {torch.__version__} has no {lacking[0]}" if lacking else ""

    def prepare(self, w: Tensor) -> Int4Pack:
        quantized = quantize_int4(w, torch.bfloat16)
        pack = getattr(torch.ops.aten, _OPS[0])
        # [k // 32, n, 2]; "zeros" are added after the scale: none are needed.
        scale = quantized.scale
        scales = torch.stack([scale, torch.zeros_like(scale)], -1).transpose(0, 1).contiguous()
        packed = pack(quantized.codes + OFFSET, _INNER_K_TILES)
        small = Int4(quantized.codes.to(torch.int8), scale)
        return Int4Pack(packed, scales, small)


@dataclass(frozen=True)
class Int4Pack(Prepared):
    packed: Tensor
    scales: Tensor
    unpacked: Int4

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scales.nbytes

    def copy(self) -> Int4Pack:
        return Int4Pack(self.packed.clone(), self.scales.clone(), self.unpacked)

    def decoded(self) -> Tensor:
        return self.unpacked.decoded()

    def bind(self, x: Tensor) -> Call:
        product = getattr(torch.ops.aten, _OPS[1])
        return lambda: product(x, self.packed, BLOCK, self.scales)
