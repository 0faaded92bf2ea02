"""Matrices [groups, n, ...] in the terms of the CUDA conversions: see cuda/rows/rows.cuh."""

from __future__ import annotations

from ctypes import Structure
from functools import lru_cache

import torch
from torch import Tensor

from blockscale.kernels.cuda.enums import Packing
from blockscale.kernels.cuda.structs import Header, Member, fields

MOST_UNITS = 2**31 - 1  # that a launch counts
MOST_MATRICES = 2**16 - 1  # of a launch that has them in the third dimension of its grid
THREADS = 256  # of a CTA, where no other number is better
NUMBERS = {"float32": "Wide", "bfloat16": "BFloat16", "float16": "Float16"}
PACKINGS = {"bits": Packing.BIT_STREAM.name, "planes": Packing.BIT_PLANES.name}
_ALIGNED = 16  # bytes: the widest access of a lane


class Matrices(Structure):
    """[groups, rows, ...]"""

    HEADER = Header("rows", "rows")
    MEMBERS = (
        Member("u8*", "data"),
        Member("long long", "group_stride", "bytes"),
        Member("long long", "row_stride", "bytes"),
    )
    _fields_ = fields(MEMBERS)


class KnownDivisor(Structure):
    """Division by a number that the host knows, of numbers below 2^31."""

    HEADER = Header("rows", "rows")
    MEMBERS = (Member("u32", "divisor"), Member("u32", "factor"), Member("u32", "shift"))
    _fields_ = fields(MEMBERS)


class Rows(Structure):
    """Units of adjacent numbers, counted through all rows."""

    HEADER = Header("rows", "rows")
    MEMBERS = (
        Member("u32", "units", "in all"),
        Member(KnownDivisor, "in_row"),
        Member(KnownDivisor, "in_group"),
    )
    _fields_ = fields(MEMBERS)


def known_divisor(divisor: int) -> KnownDivisor:
    """number // divisor = (high half of number * factor + number) >> shift, below 2^31."""
    shift = (divisor - 1).bit_length()
    factor = (2**32 * (2**shift - divisor)) // divisor + 1
    return KnownDivisor(divisor, factor, shift)


@lru_cache(maxsize=1024)
def rows_of(groups: int, n: int, units: int) -> Rows:
    """`units` of each row."""
    return Rows(groups * n * units, known_divisor(units), known_divisor(n))


def launches_of(groups: int) -> list[slice]:
    """The matrices of each launch that has them in the third dimension of its grid."""
    starts = range(0, groups, MOST_MATRICES)
    return [slice(start, min(start + MOST_MATRICES, groups)) for start in starts]


def matrices(tensor: Tensor | None) -> Matrices:
    """[groups, n, ...], borrowed, with adjacent columns; or [groups, n]. Strides become bytes."""
    if tensor is None:
        return Matrices()
    size = tensor.element_size()
    return Matrices(tensor.data_ptr(), tensor.stride(0) * size, tensor.stride(1) * size)


def blocked_matrices(scale: Tensor, blocks: int) -> Matrices:
    """Atoms [groups, bytes]: a row of atoms takes the place of a row."""
    return Matrices(scale.data_ptr(), scale.stride(0), -(-blocks // 4) * 512)


def aligned(tensor: Tensor, to: int = _ALIGNED) -> Tensor:
    """With adjacent columns, and rows that start at multiples of `to` bytes, which a lane reads or
    writes at a time; else a copy."""
    size = tensor.element_size()
    starts = [tensor.data_ptr(), *(step * size for step in tensor.stride()[:-1])]
    if tensor.stride(-1) == 1 and all(start % to == 0 for start in starts):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def aligned_numbers(tensor: Tensor) -> Tensor:
    """That start at a multiple of their own size, as all of torch's own memory does; else a copy.
    Their strides are free."""
    return tensor.clone() if tensor.data_ptr() % tensor.element_size() else tensor


def code_access(bits: int, packing: str) -> int:
    """Bytes of codes that a lane reads at a time, of a run of eight: see cuda/rows/memory.cuh."""
    return 1 if packing == "planes" else bits & -bits


def ctas_for(units: int, repeat: int, threads: int = THREADS) -> int:
    """CTAs that take `repeat` units to a thread."""
    return -(-units // (threads * repeat))
