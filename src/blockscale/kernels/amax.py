"""The largest finite magnitude of each row, and the tensor scales that follow from it.

Bits of float32 in int32: an integer maximum is the same in whatever order it is taken.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from blockscale.formats import Format
from blockscale.kernels.native import call_native, native_configs, pointer
from blockscale.numerics import amax_bits, tensor_scale_of
from blockscale.problem import dtype_name
from blockscale.runtime import native

_ELEMENTS = 1 << 24  # looked at together by torch
Amax = Callable[[Tensor], Tensor]  # x [rows, k] -> int32 [rows]


def torch_amax(x: Tensor) -> Tensor:
    panel = max(1, _ELEMENTS // x.shape[-1])
    return torch.cat([amax_bits(part) for part in x.split(panel)])


def native_amax(x: Tensor) -> Tensor:
    config = native_configs()[0]
    out = torch.empty(len(x), dtype=torch.int32)
    call = native.Amax(
        *x.shape,
        pointer(x),
        *x.stride(),
        native.DTYPES[dtype_name(x.dtype)],
        pointer(out),
        native.ISAS.index(config.isa),
        config.threads,
    )
    call_native("bs_amax", call)
    return out


def derive_scales(x: Tensor, format: Format, amax: Amax, out: Tensor) -> None:
    """x [groups, n, k] -> tensor scales into float32 [groups, n], one per row, or [groups]."""
    groups, n, k = x.shape
    largest = amax(x.reshape(groups * n, k)).reshape(groups, n)
    out.copy_(tensor_scale_of(largest if out.dim() == 2 else largest.amax(-1), format))
