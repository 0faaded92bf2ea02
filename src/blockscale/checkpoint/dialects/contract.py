"""What a dialect is: a module with a name and a few functions.

    recognises(files) -> bool         is this checkpoint written so?
    find(files) -> list[Stored]       its quantised tensors, and others that need translation; what
                                      no `Stored` claims is a plain tensor under its own name

A dialect that is written, too, has

    refuses(name, format, shape) -> str | None   why such a tensor cannot be held
    split(name, value, quantized) -> {name: Tensor}   the stored tensors of one value, quantised or
                                      plain, beside others of which these are `quantized`, by name
    describe(contents) -> Description         what goes into config.json and beside it
    SHARES_TENSOR_SCALE                       engines that read it fuse q/k/v and gate/up, and use
                                              one tensor scale for all

`split` runs on meta tensors as well: that is how sizes are planned before anything is read. It
raises ValueError where a conversion would not be exact and `refuses` could not know.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from blockscale.checkpoint.files import Files
from blockscale.checkpoint.stored import Stored
from blockscale.formats import Format
from blockscale.tensor import QTensor


@dataclass(frozen=True)
class Contents:
    """What a checkpoint that is being written holds, by name."""

    formats: Mapping[str, Format]  # quantised tensors
    kept: list[str]  # modules of plain [n, k] weights: a loader must not expect them quantised
    static_inputs: frozenset[str]  # modules whose `input_scale` is stored
    x_format: Format | str | None = None  # what all layers quantise their inputs to on the fly


@dataclass(frozen=True)
class Description:
    config: dict[str, Any]  # the quantization_config of config.json
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # other JSON files


class Dialect(Protocol):
    NAME: str

    def recognises(self, files: Files) -> bool: ...
    def find(self, files: Files) -> list[Stored]: ...


class WritableDialect(Dialect, Protocol):
    SHARES_TENSOR_SCALE: bool

    def refuses(self, name: str, format: Format, shape: tuple[int, ...]) -> str | None: ...
    def split(
        self, name: str, value: QTensor | Tensor, quantized: Container[str]
    ) -> dict[str, Tensor]: ...
    def describe(self, contents: Contents) -> Description: ...


def quant_method(files: Files) -> str | None:
    """config.json names the dialect; None where it says nothing."""
    described = files.description
    if described is None:
        return None
    if not isinstance(described, dict):
        raise ValueError(f"{files.path}: quantization_config must be an object, got {described!r}")
    method = described.get("quant_method")
    return method if isinstance(method, str) else ""
