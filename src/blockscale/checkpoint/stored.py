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
from blockscale.layouts import canonical
from blockscale.tensor import QTensor

Parts = Mapping[str, Tensor]


@dataclass(frozen=True)
class Stored:
    name: str
    shape: tuple[int, ...]
    parts: Mapping[str, Entry]  # role -> where it is
    assemble: Callable[[Parts], QTensor | Tensor]
    format: Format | None = None  # None: a plain tensor

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.parts.values())

    @property
    def dtype(self) -> torch.dtype | None:
        """Of a plain tensor."""
        return None if self.format else next(iter(self.parts.values())).dtype


def plain(entry: Entry) -> Stored:
    """A tensor stored as it is."""
    return Stored(entry.name, entry.shape, {"": entry}, lambda parts: parts[""])


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
