"""What kernels of fragments are launched with: structs, and tensor maps of weights."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, c_ubyte, sizeof
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.contract import Parts
from blockscale.kernels.cuda.enums import Dtype
from blockscale.kernels.cuda.structs import Header, Member, fields
from blockscale.problem import Problem, dtype_name
from blockscale.runtime.cuda import tensor_map


class Weight(Structure):
    HEADER = Header("gemm_arguments", "gemm")
    MEMBERS = (
        Member("const u8*", "codes"),
        Member("const u8*", "scale"),
        Member("const float*", "tensor_scale", "one per group, or null"),
        Member("const float*", "table", "of a codebook"),
        Member("const void*", "bias", "[groups, n], or null"),
    )
    _fields_ = fields(MEMBERS)


class Arguments(Structure):
    """Most products read the first 104 bytes alone: two cache lines of 64 bytes."""

    HEADER = Header("gemm_arguments", "gemm")
    MEMBERS = (
        Member("int", "m"),
        Member("int", "n"),
        Member("int", "k"),
        Member("int", "weights_unchanged", "no kernel that may still run writes the weights"),
        Member("int", "bias_dtype"),
        Member("int", "out_dtype"),
        Member("void*", "out", "[rows, n]"),
        Member("long long", "out_stride", "elements from one row to the next"),
        Member("const void*", "x", "[rows, k]"),
        Member("long long", "x_stride", "elements, or bytes of codes, from one row to the next"),
        Member("const float*", "x_scale", "one per row, or null"),
        Member(Weight, "weight", "gate and up, or one", length=2),
        Member("int", "groups"),
        Member("int", "sizes_are_64_bits"),
        Member("int", "activation"),
        Member("float", "alpha"),
        Member("float", "limit"),
        Member("const u8*", "x_block_scale", "where x is codes"),
        Member("long long", "x_block_stride"),
        Member("const void*", "group_sizes"),
    )
    _fields_ = fields(MEMBERS)


TensorMap = c_ubyte * 128  # a CUtensorMap


def add_biases(arguments: Any, biases: Sequence[Tensor | None]) -> list[Tensor | None]:
    """To arguments with the members of `Arguments`; returns what must be held until the launch.
    All are of one dtype then, and contiguous."""
    dtypes = {bias.dtype for bias in biases if bias is not None}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    held = [None if bias is None else bias.to(dtype).contiguous() for bias in biases]
    for weight, bias in zip(arguments.weight, held, strict=False):
        if bias is not None:
            weight.bias = bias.data_ptr()
            arguments.bias_dtype = Dtype[dtype_name(bias.dtype).upper()]
    return held


def address_of(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class TileCycles(Structure):
    """By which the device decides whether tiles of ragged groups are split: sm90_gemm/cost.py."""

    HEADER = Header("gemm_arguments", "gemm")
    MEMBERS = (
        Member("float", "tile"),
        Member("float", "split", "of leaving sums of parts of tiles and adding them, once"),
        Member("float", "sums", "of adding one part's"),
    )
    _fields_ = fields(MEMBERS)


class WgmmaArguments(Structure):
    """Of kernels for which TMA copies x and weights."""

    HEADER = Header("gemm_arguments", "gemm", alignment=64)  # that of tensor maps
    MEMBERS = (
        Member("TensorMap", "x_map"),
        Member("TensorMap", "code_map", length=2),
        Member("TensorMap", "scale_map", length=2),
        *Arguments.MEMBERS,
        # Of the tiled GEMM:
        Member("float*", "partial", "sums of parts of tiles"),
        Member("u32*", "arrivals", "flags, zero between launches"),
        Member("int", "band", "tiles of x whose rows stay in the L2 cache"),
        Member(TileCycles, "cycles", "of ragged groups"),
        Member("u8", "end", length=-(sizeof(Arguments) + 20 + sizeof(TileCycles)) % 64),
    )
    _fields_ = fields(MEMBERS)


def weight_maps(
    problem: Problem, part: Parts, tiles_of_cta: int, tile_k: int
) -> tuple[bytes, bytes]:
    """Of codes and scales in words of 4 bytes: [tile, unit of 64 k, word] and [tile, scale group of
    eight blocks, word], of which a CTA takes its tiles of 16 rows and one stage at a time."""
    format = problem.w_kind.format
    tiles = problem.groups * -(-problem.n // 16)

    def described(address: int, words: int, along_k: int, of_stage: int) -> bytes:
        sizes, strides = (words, along_k, tiles), (words, words * along_k)
        box = words, of_stage, tiles_of_cta
        return tensor_map(part.codes.device.index, address, "uint32", sizes, strides, box)

    units, scale_groups = -(-problem.k // 64), -(-problem.k // (8 * format.block))
    stage_groups = max(1, tile_k // (8 * format.block))
    return (
        described(part.codes.data_ptr(), 32 * format.element.bits, units, tile_k // 64),
        described(part.scale.data_ptr(), 32, scale_groups, stage_groups),
    )


def column_maps(
    problem: Problem, part: Parts, units: int, scale_groups: int
) -> tuple[bytes, bytes]:
    """Of the same words where sums run over rows of w: n of the problem counts columns, k rows. Of
    each matrix a CTA takes so many `units` and `scale_groups` side by side, and a stage four tiles
    of 16 rows. What is below the last row of a matrix is copied as zeros."""
    format = problem.w_kind.format
    tiles = -(-problem.k // 16)

    def described(address: int, words: int, across: int, of_cta: int) -> bytes:
        sizes = words, across, tiles, problem.groups
        strides = words, words * across, words * across * tiles
        box = words, of_cta, 4, 1
        return tensor_map(part.codes.device.index, address, "uint32", sizes, strides, box)

    across, groups_across = -(-problem.n // 64), -(-problem.n // (8 * format.block))
    return (
        described(part.codes.data_ptr(), 32 * format.element.bits, across, units),
        described(part.scale.data_ptr(), 32, groups_across, scale_groups),
    )
