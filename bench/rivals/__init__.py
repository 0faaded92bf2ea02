"""One file per implementation; `field` lists them all. See `contract` for what each is."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import blockscale as bs
from bench.rivals.bitsandbytes_nf4 import Bitsandbytes
from bench.rivals.blockscale import Blockscale
from bench.rivals.blockscale_cuda import BlockscaleCuda
from bench.rivals.contract import Prepared, Rival
from bench.rivals.cuda_read import CudaRead
from bench.rivals.humming import FORMATS as HUMMING_FORMATS
from bench.rivals.humming import Humming
from bench.rivals.memory_read import WAYS, MemoryRead
from bench.rivals.onnx_runtime import OnnxRuntime
from bench.rivals.torch_int4 import TorchInt4
from bench.rivals.torch_kleidiai import TorchKleidiAI
from bench.rivals.torch_linear import TorchLinear

# One of each size: e3m2 and e5m2 are read and decoded as their siblings are.
FORMATS = (
    bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP8, bs.KBIT2, bs.KBIT3, bs.KBIT4, bs.KBIT5,
)  # fmt: skip
INT8_FORMATS = (bs.NVFP4, bs.MXFP4, bs.KBIT4, bs.KBIT2)  # with x rounded to int8, if asked
WIDELY_TIMED = (bs.NVFP4, bs.MXFP4, bs.KBIT4)  # on a GPU at every m, the others at
FEW_ROWS = (1, 16, 256, 1024, 4096)
OTHERS = ("humming", "bitsandbytes")  # of a GPU, besides torch


def field(
    formats: Sequence[bs.Format], threads: int, dtype: torch.dtype = torch.bfloat16
) -> list[Rival]:
    """Everyone who is to be measured: the baseline, the others, the ceiling, then ours. In float32,
    for a CPU without instructions for bfloat16, those who multiply bfloat16 would take minutes."""
    short = [TorchLinear(torch.bfloat16), TorchInt4(), Bitsandbytes()]
    others: list[Rival] = [
        *(short if dtype == torch.bfloat16 else ()),
        TorchLinear(torch.float32),
        TorchKleidiAI(),
        OnnxRuntime(int8=False, threads=threads),
        OnnxRuntime(int8=True, threads=threads),
        *(MemoryRead(way) for way in WAYS),
    ]
    for format in formats:
        others.append(Blockscale(format, dtype=dtype))
        if format in INT8_FORMATS:
            others.append(Blockscale(format, int8=True, dtype=dtype))
    return others


def cuda_field(
    formats: Sequence[bs.Format], rows: Sequence[int], others: Sequence[str] = OTHERS
) -> list[Rival]:
    """The same on a GPU, with a ceiling for each size of weight."""
    found: list[Rival] = [TorchLinear(torch.bfloat16)]
    if "humming" in others:
        found += [Humming(format, tuple(rows)) for format in HUMMING_FORMATS]
    if "bitsandbytes" in others:
        found.append(Bitsandbytes())
    sizes: dict[float, tuple[int, ...]] = {16.0: ()}
    for format in formats:
        limit = () if format in WIDELY_TIMED else FEW_ROWS
        sizes.setdefault(format.bits_per_value, limit)
        found.append(BlockscaleCuda(format, limit))
    for bits, limit in sizes.items():
        found += [CudaRead(bits, overlap, limit) for overlap in (True, False)]
    return found


__all__ = ["FORMATS", "INT8_FORMATS", "OTHERS", "Prepared", "Rival", "cuda_field", "field"]
