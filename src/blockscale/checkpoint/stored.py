"""A tensor of a checkpoint before it is read: what it is, and which stored tensors make it up.

Dialects differ in how many tensors they store for one weight, and in their conventions. `Stored`
hides both: its shape and format are known from headers alone, and `assemble` turns the stored
parts into a tensor in this library's one convention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.checkpoint.files import Entry
from blockscale.formats import CATALOGUE, Format
from blockscale.layouts import bytes_of, canonical
from blockscale.tensor import QTensor

Parts = Mapping[str, Tensor]
Ranges = tuple[tuple[int, int], ...]  # starts and stops, in order
Windows = Mapping[str, tuple[int, Ranges]]  # role -> axis of the stored tensor, and what of it


@dataclass(frozen=True)
class Stored:
    name: str
    shape: tuple[int, ...]
    parts: Mapping[str, Entry]  # role -> where it is
    assemble: Callable[[Parts], QTensor | Tensor]
    format: Format | None = None  # None: a plain tensor
    # What of each part makes ranges of one axis of the whole, for `assemble` to put together; roles
    # that are left out are read whole. None: this dialect's parts are only read whole.
    windows: Callable[[int, Ranges], Windows] | None = None

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.parts.values())

    @property
    def dtype(self) -> torch.dtype | None:
        """Of a plain tensor."""
        return None if self.format else next(iter(self.parts.values())).dtype


def plain(entry: Entry) -> Stored:
    """A tensor stored as it is."""
    return Stored(
        entry.name,
        entry.shape,
        {"": entry},
        lambda parts: parts[""],
        windows=lambda axis, ranges: {"": (axis, ranges)},
    )


def row_windows(
    format: Format, shape: tuple[int, ...], codes: str, scale: str, tensor_scale: str | None = None
) -> Callable[[int, Ranges], Windows]:
    """Of parts that lie as canonical bytes do: codes and scales by row, one byte an item.

    codes, scale, tensor_scale   their roles; the last where leading dimensions have one each
    """

    def windows(axis: int, ranges: Ranges) -> Windows:
        if axis < len(shape) - 1:
            alike = dict.fromkeys((codes, scale), (axis, ranges))
            cut = tensor_scale is not None and axis < len(shape) - 2
            return alike | ({tensor_scale: (axis, ranges)} if cut and tensor_scale else {})
        return {
            codes: (axis, _in_bytes(ranges, format.element.bits, 1)),
            scale: (axis, _in_bytes(ranges, format.scale.bits, format.block)),
        }

    return windows


def _in_bytes(ranges: Ranges, bits: int, block: int) -> Ranges:
    found = (bytes_of(slice(*each), bits, block) for each in ranges)
    return tuple((each.start, each.stop) for each in found)


def module_of(name: str) -> str:
    """The module a tensor belongs to: "mlp.up_proj.weight" -> "mlp.up_proj"."""
    return name.rpartition(".")[0]


def named(format: Format) -> Format:
    """The same format under its name in the catalogue, where it has one."""
    return next((entry for entry in CATALOGUE.values() if entry == format), format)


def outline(format: Format, shape: tuple[int, ...]) -> QTensor:
    """A tensor without bytes: what `quantize` would return, on the meta device."""

    def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    place = canonical(format)
    place.check(format, shape)
    return QTensor(
        format,
        shape,
        empty(place.code_storage_shape(format, shape)),
        empty(place.scale_storage_shape(format, shape)),
        empty(shape[:-2], torch.float32) if format.has_tensor_scale else None,
        empty((1 << format.element.bits,), torch.float32) if format.is_codebook else None,
        place,
    )
