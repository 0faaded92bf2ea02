"""One file per implementation; `field` lists them all. See `contract` for what each is."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import blockscale as bs
from bench.rivals.bitsandbytes_nf4 import Bitsandbytes
from bench.rivals.blockscale import Blockscale
from bench.rivals.contract import Prepared, Rival
from bench.rivals.memory_read import WAYS, MemoryRead
from bench.rivals.onnx_runtime import OnnxRuntime
from bench.rivals.torch_int4 import TorchInt4
from bench.rivals.torch_linear import TorchLinear

# One of each size: e3m2 and e5m2 are read and decoded as their siblings are.
FORMATS = (
    bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP8, bs.KBIT2, bs.KBIT3, bs.KBIT4, bs.KBIT5,
)  # fmt: skip
INT8_FORMATS = (bs.NVFP4, bs.MXFP4, bs.KBIT4, bs.KBIT2)  # with x rounded to int8, if asked


def field(formats: Sequence[bs.Format], threads: int) -> list[Rival]:
    """Everyone who is to be measured: the baseline, the others, the ceiling, then ours."""
    others: list[Rival] = [
        TorchLinear(torch.bfloat16),
        TorchLinear(torch.float32),
        TorchInt4(),
        Bitsandbytes(),
        OnnxRuntime(int8=False, threads=threads),
        OnnxRuntime(int8=True, threads=threads),
        *(MemoryRead(way) for way in WAYS),
    ]
    for format in formats:
        others.append(Blockscale(format))
        if format in INT8_FORMATS:
            others.append(Blockscale(format, int8=True))
    return others


__all__ = ["FORMATS", "INT8_FORMATS", "Prepared", "Rival", "field"]
