"""The largest finite magnitude of each row, from which tensor scales follow."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.kernels.native import call_native, native_configs, native_refusal, pointer
from blockscale.numerics import amax_bits
from blockscale.problem import dtype_name
from blockscale.runtime import native, target_of

_ELEMENTS = 1 << 24  # looked at together by torch


def row_amax(x: Tensor) -> Tensor:
    """x [rows, k] -> bits of float32 in int32 [rows]. An integer maximum: the same everywhere."""
    if native_refusal(target_of(x.device)) is not None:
        panel = max(1, _ELEMENTS // x.shape[-1])
        return torch.cat([amax_bits(part) for part in x.split(panel)])
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
