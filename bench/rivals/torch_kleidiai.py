"""torch's 4-bit product with x rounded to int8, a scale for each row: Arm's KleidiAI kernels.

torchao's int8-dynamic-activation, int4-weight linear calls it on ARM. Elsewhere torch has the same
operators with a reference behind them, which unpacks in float32: that would be no rival.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.rivals.contract import Prepared, Rival
from bench.rivals.int4 import BLOCK, OFFSET, Int4, quantize_int4
from bench.timing import Call

_OPS = ("_dyn_quant_pack_4bit_weight", "_dyn_quant_matmul_4bit")


@dataclass(frozen=True)
class TorchKleidiAI(Rival):
    name: str = "torch kleidiai int4, int8 x"
    dtype: torch.dtype = torch.float32  # of x and of the result: of blocks it takes no other
    x_block: int | None = 0

    def missing(self) -> str:
        lacking = [op for op in _OPS if not hasattr(torch.ops.aten, op)]
        if lacking:
            return f"torch {torch.__version__} has no {lacking[0]}"
        if not torch.backends.kleidiai.is_available():
            return f"torch {torch.__version__} has no KleidiAI here: it is for ARM"
        return ""

    def prepare(self, w: Tensor) -> KleidiAIPack:
        packed = pack(w)
        if packed.packed.dtype != torch.uint8:
            raise RuntimeError("torch packed for its reference: KleidiAI needs a CPU with dotprod")
        return packed


def pack(w: Tensor) -> KleidiAIPack:
    """For whatever kernels torch has here. Those of KleidiAI want scales in bfloat16."""
    n, k = w.shape
    quantized = quantize_int4(w, torch.bfloat16)
    pairs = (quantized.codes + OFFSET).to(torch.uint8).unflatten(1, (-1, 2))
    nibbles = pairs[..., 0] | pairs[..., 1] << 4
    packed = getattr(torch.ops.aten, _OPS[0])(nibbles, quantized.scale, None, BLOCK, k, n)
    return KleidiAIPack(packed, Int4(quantized.codes.to(torch.int8), quantized.scale))


@dataclass(frozen=True)
class KleidiAIPack(Prepared):
    packed: Tensor
    unpacked: Int4

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def copy(self) -> KleidiAIPack:
        return KleidiAIPack(self.packed.clone(), self.unpacked)

    def decoded(self) -> Tensor:
        return self.unpacked.decoded()

    def bind(self, x: Tensor) -> Call:
        product, rows = getattr(torch.ops.aten, _OPS[1]), x.float()
        n, k = self.unpacked.codes.shape
        return lambda: product(rows, self.packed, BLOCK, k, n)
