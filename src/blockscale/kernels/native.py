"""Formats and tensors in the terms of the native CPU library."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from blockscale.formats import Codebook, Float, Format
from blockscale.kernels.contract import Parts
from blockscale.numerics import cast, scaled_values
from blockscale.problem import Kind
from blockscale.runtime import load_native, native


def call_native(function: str, arguments: ctypes.Structure) -> None:
    loaded = load_native()
    if isinstance(loaded, str):
        raise RuntimeError(loaded)  # a kernel that needs the library has refused before
    loaded.call(function, arguments)


@lru_cache(maxsize=None)  # native code borrows them
def _table(element: Float | Codebook) -> Tensor:
    """float32 values of every code."""
    return cast(torch.tensor(element.values, dtype=torch.float64), torch.float32)  # subnormals too


def native_format(format: Format, codebook: Tensor | None) -> native.Format:
    """Tables are borrowed: the caller keeps `codebook` alive; None stands for the format's own."""
    element, scale = format.element, format.scale
    table = _table(element) if codebook is None else codebook
    return native.Format(
        native.DECODERS.get(element.name, native.DECODERS["table"]),
        element.bits,
        format.block,
        scale.bits // 8,
        pointer(table),
        pointer(_table(scale)) if scale.bits == 8 else None,
    )


@dataclass(frozen=True)
class NativeConfig:
    isa: str
    threads: int

    def __str__(self) -> str:
        return f"{self.isa}, {self.threads} threads"


def native_configs() -> list[NativeConfig]:
    loaded = load_native()
    return [] if isinstance(loaded, str) else [NativeConfig(loaded.isa, torch.get_num_threads())]


def native_refusal(target: str) -> str | None:
    """Why native code cannot run there, whatever the work."""
    if target != "cpu":
        return f"runs on CPUs; this is {target}"
    loaded = load_native()
    return loaded if isinstance(loaded, str) else None


def matrices(tensor: Tensor) -> native.Matrices:
    """[groups, n, ...], borrowed, with adjacent columns."""
    return native.Matrices(tensor.data_ptr(), tensor.stride(0), tensor.stride(1))


def adjacent_columns(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


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
