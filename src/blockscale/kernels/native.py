"""Formats and tensors in the terms of the native CPU library."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from blockscale.formats import Float, Format
from blockscale.kernels.contract import Parts
from blockscale.numerics import scaled_values
from blockscale.problem import Kind
from blockscale.runtime import load_native, native


def call_native(function: str, arguments: ctypes.Structure) -> None:
    loaded = load_native()
    if isinstance(loaded, str):
        raise RuntimeError(loaded)  # a kernel that needs the library has refused before
    loaded.call(function, arguments)


@lru_cache(maxsize=64)
def _table(element: Float) -> Tensor:
    """float32 values of every code, kept for as long as the process runs."""
    return torch.tensor(element.values, dtype=torch.float32)


def native_format(format: Format, codebook: Tensor | None) -> native.Format:
    """Tables are borrowed: the caller keeps `codebook` alive."""
    element, scale = format.element, format.scale
    table = codebook
    if table is None and isinstance(element, Float):
        table = _table(element)
    return native.Format(
        native.DECODERS.get(element.name, native.DECODERS["table"]),
        element.bits,
        format.block,
        scale.bits // 8,
        pointer(table),
        pointer(_table(scale)) if scale.bits == 8 else None,
    )


def pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def decode_rows(
    kind: Kind, parts: Parts, shape: tuple[int, int], first: int, last: int
) -> Tensor:  # float32 [last - first, k]
    """decode * scale of some rows of a matrix in a layout that can be cut there."""
    format, layout = kind
    codes, scale = layout.slice_rows(parts.codes, parts.scale, format, shape, slice(first, last))
    cut = (last - first, shape[1])
    values = scaled_values(
        layout.unpack_codes(codes, format, cut),
        layout.unpack_scale(scale, format, cut),
        format,
        parts.codebook,
    )
    return values.to(torch.float32)
