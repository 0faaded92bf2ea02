"""Layouts as nested shapes and strides, in CuTe's notation.

A `Strided` maps coordinates to offsets: `((32,4),4):((16,4),1)` sends the coordinate ((i, j), k) to
16 i + 4 j + k. A mode of the shape may be an integer or a tuple of modes, and an integer coordinate
for a nested mode counts through it with its first part fastest. Layouts are functions, so they
compose; tilings, transposes and tensor-core scale arrangements are all built from that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Union, cast

Nested = Union[int, tuple["Nested", ...]]


def flatten(nested: Nested) -> tuple[int, ...]:
    if isinstance(nested, int):
        return (nested,)
    return tuple(leaf for part in nested for leaf in flatten(part))


def size_of(shape: Nested) -> int:
    return prod(flatten(shape))


def _same_profile(a: Nested, b: Nested) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int)
    return len(a) == len(b) and all(map(_same_profile, a, b))


def _index(coord: Nested, layout: Strided) -> int:
    if isinstance(layout.shape, int):
        if not isinstance(coord, int):
            raise ValueError(f"coordinate {_text(coord)} is more nested than the layout {layout}")
        return coord * cast(int, layout.stride)
    modes = layout.modes
    if isinstance(coord, int):  # count through the modes, first fastest; the last takes the rest
        total = 0
        for mode in modes[:-1]:
            total += _index(coord % mode.size, mode)
            coord //= mode.size
        return total + _index(coord, modes[-1])
    if len(coord) != len(modes):
        raise ValueError(f"coordinate {_text(coord)} has {len(coord)} modes, {layout} {len(modes)}")
    return sum(map(_index, coord, modes))


def _text(nested: Nested) -> str:
    if isinstance(nested, int):
        return str(nested)
    return "(" + ",".join(map(_text, nested)) + ")"


@dataclass(frozen=True)
class Strided:
    """A function from coordinates to offsets, written shape:stride."""

    shape: Nested
    stride: Nested

    def __post_init__(self) -> None:
        if not _same_profile(self.shape, self.stride):
            raise ValueError(
                f"shape {_text(self.shape)} and stride {_text(self.stride)} are not nested alike"
            )
        if any(extent < 1 for extent in flatten(self.shape)):
            raise ValueError(f"extents must be at least 1, got shape {_text(self.shape)}")

    @classmethod
    def ordered(cls, shape: Sequence[int], order: Sequence[int]) -> Strided:
        """Compact strides; the mode with the lowest order varies fastest."""
        if sorted(order) != sorted(set(order)) or len(order) != len(shape):
            raise ValueError(f"order {tuple(order)} must rank each mode of {tuple(shape)} once")
        stride, step = [0] * len(shape), 1
        for mode in sorted(range(len(shape)), key=lambda mode: order[mode]):
            stride[mode] = step
            step *= shape[mode]
        return cls(tuple(shape), tuple(stride))

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return size_of(self.shape)

    @property
    def cosize(self) -> int:
        """One more than the largest offset."""
        extents, steps = flatten(self.shape), flatten(self.stride)
        return 1 + sum((extent - 1) * step for extent, step in zip(extents, steps, strict=True))

    @property
    def modes(self) -> tuple[Strided, ...]:
        if isinstance(self.shape, int):
            return (self,)
        strides = cast(tuple[Nested, ...], self.stride)
        return tuple(Strided(*mode) for mode in zip(self.shape, strides, strict=True))

    def __call__(self, *coord: Nested) -> int:
        """The offset of a coordinate: layout(3), layout(1, 2) or layout((1, 2), 3)."""
        return _index(coord[0] if len(coord) == 1 else coord, self)

    def offsets(self) -> Iterator[int]:
        """Offsets of the coordinates 0 .. size - 1, first mode fastest."""
        return map(self, range(self.size))

    def coalesce(self) -> Strided:
        """The same function with as few modes as possible."""
        merged: list[tuple[int, int]] = []
        for extent, step in zip(flatten(self.shape), flatten(self.stride), strict=True):
            if extent == 1:
                continue
            if merged and step == merged[-1][0] * merged[-1][1]:
                merged[-1] = (merged[-1][0] * extent, merged[-1][1])
            else:
                merged.append((extent, step))
        return _from_pairs(merged)

    def compose(self, inner: Strided) -> Strided:
        """self(inner(coordinate)), with the shape of `inner`; an error where no layout is that."""
        outer = self if isinstance(self.shape, int) else self.coalesce()
        _check_no_carry(outer, inner)
        return _compose(outer, inner)

    def complement(self, cosize: int) -> Strided:
        """A layout of the offsets up to `cosize` that this one does not reach, as their starts."""
        holes: list[tuple[int, int]] = []
        reached = 1
        pairs = zip(flatten(self.shape), flatten(self.stride), strict=True)
        for step, extent in sorted((step, extent) for extent, step in pairs):
            if step == 0 or extent == 1:
                continue
            if step % reached:
                raise ValueError(f"{self} overlaps itself and has no complement")
            if step > reached:
                holes.append((step // reached, reached))
            reached = step * extent
        # The last mode stays even when its extent is 1: its stride says where a copy would start.
        return _from_pairs([*holes, (-(-cosize // reached), reached)])

    def __str__(self) -> str:
        return f"{_text(self.shape)}:{_text(self.stride)}"


def _from_pairs(pairs: list[tuple[int, int]]) -> Strided:
    """A layout of the given (extent, step) modes, with no more nesting than it needs."""
    if not pairs:
        return Strided(1, 0)
    if len(pairs) == 1:
        return Strided(*pairs[0])
    return Strided(tuple(extent for extent, _ in pairs), tuple(step for _, step in pairs))


def _check_no_carry(outer: Strided, inner: Strided) -> None:
    """Modes compose one by one only if their offsets never add up across a mode of `outer`."""
    boundary = 1
    pairs = list(zip(flatten(inner.shape), flatten(inner.stride), strict=True))
    for extent in flatten(outer.shape)[:-1]:
        boundary *= extent
        reach = [max(i * step % boundary for i in range(count)) for count, step in pairs]
        if sum(reach) >= boundary:
            raise ValueError(
                f"{outer} cannot be composed with {inner}: offsets carry at {boundary}"
            )


def _compose(outer: Strided, inner: Strided) -> Strided:
    if isinstance(inner.shape, int):
        return _compose_mode(outer, inner.shape, cast(int, inner.stride))
    parts = [_compose(outer, mode) for mode in inner.modes]
    return Strided(tuple(part.shape for part in parts), tuple(part.stride for part in parts))


def _compose_mode(outer: Strided, extent: int, step: int) -> Strided:
    """`outer` read at 0, step, 2 step, ..., `extent` times."""
    shapes, strides = flatten(outer.shape), flatten(outer.stride)
    if step == 0 or len(shapes) == 1:
        return Strided(extent, step * strides[0] if step else 0)
    parts: list[tuple[int, int]] = []
    skip, left = step, extent
    for position, (outer_extent, outer_step) in enumerate(zip(shapes, strides, strict=True)):
        if position == len(shapes) - 1:
            available = left
        else:
            if skip % outer_extent and outer_extent % skip:
                raise ValueError(
                    f"{outer} cannot be read with stride {step}: {skip} and {outer_extent}"
                )
            available = -(-outer_extent // skip)
        taken = min(available, left)
        if left % taken:
            raise ValueError(f"{outer} cannot be read {extent} times with stride {step}")
        if taken > 1:
            parts.append((taken, skip * outer_step))
        left //= taken
        skip = -(-skip // outer_extent)
    return _from_pairs(parts)


def tile_to_shape(atom: Strided, shape: Sequence[int], order: Sequence[int]) -> Strided:
    """Cover `shape` with copies of `atom`, laid one after the other; the lowest order goes first.

    Each mode of the result is (mode of the atom, number of tiles). Extents that the atom does not
    divide are covered with whole atoms, so the result can be larger than `shape`.
    """
    modes = list(atom.modes)
    if len(modes) > len(shape):
        raise ValueError(f"the atom {atom} has more modes than the shape {tuple(shape)}")
    modes += [Strided(1, 0)] * (len(shape) - len(modes))
    counts = [-(-extent // mode.size) for extent, mode in zip(shape, modes, strict=True)]
    tiles = Strided.ordered(counts, order)
    # Tiles start where the atom, repeated, leaves off: compose their order with its complement.
    starts = atom.complement(atom.cosize * tiles.cosize).compose(tiles)
    return Strided(
        tuple((mode.shape, start.shape) for mode, start in zip(modes, starts.modes, strict=True)),
        tuple((mode.stride, start.stride) for mode, start in zip(modes, starts.modes, strict=True)),
    )


@dataclass(frozen=True)
class Swizzle:
    """XOR of `bits` bits of an offset into others: bits [base + shift, ...) into [base, ...).

    Written Sw<bits,base,shift>. A negative shift goes the other way. A swizzle is its own inverse.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0 or abs(self.shift) < self.bits:
            raise ValueError(f"{self}: needs bits >= 0, base >= 0 and |shift| >= bits")

    def __call__(self, offset: int) -> int:
        source = offset >> (self.base + max(self.shift, 0)) & ((1 << self.bits) - 1)
        return offset ^ source << (self.base + max(-self.shift, 0))

    def compose(self, layout: Strided) -> Swizzled:
        """self(layout(coordinate)): where a swizzled memory holds what the layout places."""
        return Swizzled(self, layout)

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"


@dataclass(frozen=True)
class Swizzled:
    """A layout whose offsets are swizzled, as in shared memory that TMA has written."""

    swizzle: Swizzle
    layout: Strided

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return self.layout.size

    def __call__(self, *coord: Nested) -> int:
        return self.swizzle(self.layout(*coord))

    def offsets(self) -> Iterator[int]:
        """Offsets of the coordinates 0 .. size - 1, first mode fastest."""
        return map(self.swizzle, self.layout.offsets())

    def compose(self, inner: Strided) -> Swizzled:
        """self(inner(coordinate)), with the shape of `inner`."""
        return Swizzled(self.swizzle, self.layout.compose(inner))

    def __str__(self) -> str:
        return f"{self.swizzle} o {self.layout}"
