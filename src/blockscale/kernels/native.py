"""Formats and tensors in the terms of the native CPU library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from blockscale.formats import Codebook, Float, Format
from blockscale.kernels.contract import Config, Parts
from blockscale.kernels.panels import unpack_rows
from blockscale.numerics import cast, scaled_values
from blockscale.problem import Kind, dtype_name
from blockscale.runtime import Device, load_native, native, usable_threads

# Layouts that native code reads everywhere.
DECODED = ("bits/rows", "planes/rows", "cpu_tiles/cpu_tiles")


def call_native(function: str, arguments: ctypes.Structure) -> None:
    loaded = load_native()
    if isinstance(loaded, str):
        raise RuntimeError(loaded)  # a kernel that needs the library has refused before
    loaded.call(function, arguments)


@cache  # native code borrows them
def _table(element: Float | Codebook) -> Tensor:
    """float32 values of every code."""
    return cast(torch.tensor(element.values, dtype=torch.float64), torch.float32)  # subnormals too


def native_format(format: Format, table: int | None) -> native.Format:
    """`table` is the address of a codebook, which the caller keeps alive."""
    element, scale = format.element, format.scale
    return native.Format(
        native.DECODERS.get(element.name, native.DECODERS["table"]),
        element.bits,
        format.block,
        scale.bits // 8,
        pointer(_table(element)) if isinstance(element, Float) else table,
        pointer(_table(scale)) if scale.bits == 8 else None,
        *(_plain_scales(scale) if scale.bits == 8 else (0, 0, 0, 0)),
    )


def _plain_scales(scale: Float) -> tuple[int, int, int, int]:
    """Of normal numbers: the first code, how many, and how a shift and an addition decode them."""
    first = 1 << scale.mantissa
    return first, scale.max_code - first + 1, 23 - scale.mantissa, (127 - scale.bias) << 23


@dataclass(frozen=True)
class NativeConfig(Config):
    isa: str

    @property
    def threads(self) -> int:
        """As many as torch uses, at any time, unless a container allows fewer."""
        return usable_threads()

    def __str__(self) -> str:
        return f"{self.isa}, {self.threads} threads"


def native_configs() -> list[NativeConfig]:
    loaded = load_native()
    return [] if isinstance(loaded, str) else [NativeConfig(loaded.isa)]


def native_refusal(device: Device) -> str | None:
    """Why native code cannot run there, whatever the work."""
    if device.arch != "cpu":
        return f"runs on CPUs; this is {device.arch}"
    loaded = load_native()
    return loaded if isinstance(loaded, str) else None


def strided_batch(tensor: Tensor) -> native.StridedBatch:
    """[groups, n, ...], borrowed, with adjacent columns."""
    return native.StridedBatch(tensor.data_ptr(), tensor.stride(0), tensor.stride(1))


def adjacent_columns(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def streams(format: Format) -> bool:
    """Whether products read the codes of this format in the cpu_tiles layout."""
    element = format.element
    block = format.block >= 32 or (format.block == 16 and element.bits in (2, 4, 8))
    return block and (2 <= element.bits <= 6 or element.name in native.DECODERS)


def decode(
    kind: Kind,
    parts: Parts,  # [groups, n, ...]; tensor_scale [groups, n]
    config: NativeConfig,
    out: Tensor,  # [groups, n, k]
) -> None:
    """cast(fp32(fp32(decode * scale) * tensor_scale)), from a layout in `DECODED`."""
    Decoding(kind, parts, config, out.shape, out.dtype)(out)


class Decoding:
    """`decode` of some parts, again and again. It has their addresses, and whoever calls keeps them
    alive."""

    def __init__(
        self,
        kind: Kind,
        parts: Parts,
        config: NativeConfig,
        shape: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        format, layout = kind
        codes, scale = adjacent_columns(parts.codes), adjacent_columns(parts.scale)
        row_scale = None if parts.tensor_scale is None else parts.tensor_scale.contiguous()
        table = None if parts.codebook is None else parts.codebook.contiguous()
        placed = codes, scale, row_scale, table
        self._copies = [new for new, old in zip(placed, parts, strict=True) if new is not old]
        self._config = config
        self._template = bytes(
            native.Dequantize(
                native_format(format, pointer(table)),
                native.CODE_LAYOUTS[layout.codes],
                *shape,
                strided_batch(codes),
                strided_batch(scale),
                pointer(row_scale),
                native.StridedBatch(),
                native.DTYPES[dtype_name(dtype)],
                native.ISAS.index(config.isa),
                config.threads,
            )
        )

    @property
    def copies(self) -> bool:
        """Whether it holds copies of the parts."""
        return bool(self._copies)

    def __call__(self, out: Tensor) -> None:
        call = native.Dequantize.from_buffer_copy(self._template)
        call.out, call.threads = strided_batch(out), self._config.threads
        call_native("bs_dequantize", call)


def decoded_rows(
    kind: Kind,
    config: NativeConfig,
    part: Parts,  # without a group dimension
    shape: tuple[int, int],
    rows: slice,
) -> Tensor:
    """decode * scale of some rows of a matrix, float32."""
    if str(kind.layout) not in DECODED:
        codes, scale = unpack_rows(part, kind, shape, rows)
        return scaled_values(codes, scale, kind.format, part.codebook).to(torch.float32)
    out = torch.empty(1, rows.stop - rows.start, shape[1], dtype=torch.float32)
    codes, scale = kind.layout.slice_rows(part.codes, part.scale, kind.format, shape, rows)
    decode(kind, Parts(codes[None], scale[None], None, part.codebook), config, out)
    return out[0]
