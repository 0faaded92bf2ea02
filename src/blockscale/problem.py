"""The frozen facts of a call: what a kernel is chosen by, and what the work costs at least."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch

from blockscale.formats import Format, parse_spec
from blockscale.layouts import Layout, layout
from blockscale.runtime import Device


class Kind(NamedTuple):
    """What an operand is: its format and where its bytes sit. Written "spec@layout"."""

    format: Format
    layout: Layout

    def __str__(self) -> str:
        return self.format.spec + "@" + self.layout.name


@lru_cache(maxsize=1024)
def parse_kind(text: str) -> Kind:
    spec, _, place = text.partition("@")
    return Kind(parse_spec(spec), layout(place))


_CONVERSIONS = ("quantize", "dequantize", "repack")


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """One call. Formats are strings, so that a Problem is hashable, printable and storable.

    m         rows of x: of each batch where `groups` batches are multiplied alike, in all where
              `ragged` groups of rows belong to `groups` experts
    weighted  of quantize: squared errors have an importance for each column
    deterministic  bits must not depend on the number of threads
    derives   of quantize: tensor scales are chosen by the kernel, one per row, and written
    x, w      "bfloat16" for a plain tensor, or the kind of a quantised one. Of quantize,
              dequantize and tensor_scale, x is the plain tensor [m, k] and w the quantised one; of
              repack, x is what there is and w what it becomes
    """

    verb: str
    m: int
    n: int
    k: int
    groups: int = 1
    ragged: bool = False
    gated: bool = False
    bias: bool = False
    activation: str = ""
    rule: str = ""
    weighted: bool = False
    derives: bool = False
    deterministic: bool = False
    x: str
    w: str
    out: str
    device: Device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._facts == other._facts

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _facts(self) -> tuple[object, ...]:
        """Collected once, and hashed once: a Problem is looked up at every call."""
        return tuple(getattr(self, each.name) for each in fields(self))

    @cached_property
    def _hash(self) -> int:
        return hash(self._facts)

    @property
    def x_kind(self) -> Kind:
        """Of a quantised x; an error where x is a plain tensor."""
        return parse_kind(self.x)

    @property
    def w_kind(self) -> Kind:
        return parse_kind(self.w)

    @property
    def target(self) -> str:
        """What is compiled for: "sm_90", or "cpu"."""
        return self.device.arch

    @property
    def out_dtype(self) -> torch.dtype:
        return dtype_named(self.out)

    @property
    def rows(self) -> int:
        return self.m if self.ragged else self.m * self.groups

    @property
    def busy_matrices(self) -> float:
        """Weight matrices that have rows of x: on average, where rows go to experts at random."""
        if not self.ragged or not self.groups:
            return self.groups
        return self.groups * (1 - (1 - 1 / self.groups) ** self.m)

    @property
    def weights_read(self) -> int:
        """Weight matrices that are read at most: a ragged call reads one expert per row."""
        experts = min(self.groups, self.m) if self.ragged else self.groups
        return experts * (2 if self.gated else 1)

    @property
    def bytes(self) -> int:
        """The fewest bytes that cross memory: every operand read once, the result written once.

        Of experts those that have rows count, on average.
        """
        if self.verb in _CONVERSIONS:
            return round(self.m * self.k * (_bits(self.x) + _bits(self.w)) / 8)
        if self.verb == "tensor_scale":
            return round(self.m * self.k * _bits(self.x) / 8)
        wide, narrow = (self.n, self.k) if self.verb == "input_grad" else (self.k, self.n)
        moved = self.rows * (wide * _bits(self.x) + narrow * _bits(self.out))
        weights = self.busy_matrices * (2 if self.gated else 1)
        return round((moved + weights * self.n * self.k * _bits(self.w)) / 8)

    @property
    def flops(self) -> int:
        if self.verb in (*_CONVERSIONS, "tensor_scale"):
            return 0
        return 2 * self.rows * self.n * self.k * (2 if self.gated else 1)

    @property
    def intensity(self) -> float:
        """flops per byte."""
        return self.flops / max(self.bytes, 1)

    def __str__(self) -> str:
        size = f"m={self.m} k={self.k}"
        if self.n:
            size = f"m={self.m} n={self.n} k={self.k}"
        if self.groups > 1:
            size += f" {'experts' if self.ragged else 'batches'}={self.groups}"
        return f"{self.verb} {size}, x {self.x}, w {self.w}, out {self.out}, on {self.target}"


def _bits(operand: str) -> float:
    if "@" in operand:
        return parse_kind(operand).format.bits_per_value
    return torch.finfo(dtype_named(operand)).bits


def dtype_named(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


@lru_cache(maxsize=64)
def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
