"""What block-scaled kernels are launched with: a struct, and tensor maps of both operands."""

from __future__ import annotations

from ctypes import Structure, sizeof
from typing import NamedTuple

from torch import Tensor

from blockscale.kernels.cuda.structs import Header, Member, fields
from blockscale.kernels.matmul.block_scaled.operands import Operands
from blockscale.kernels.matmul.fragments.arguments import Arguments
from blockscale.layouts import ATOM_BYTES, ATOM_COLUMNS, ATOM_ROWS
from blockscale.runtime.cuda import panel_map, tensor_map

_ATOM_WORDS = ATOM_BYTES // 4


class BlockScaledArguments(Structure):
    """Of kernels for which TMA copies codes and blocked scales of x and weights."""

    HEADER = Header("block_scaled_arguments", "gemm", alignment=64)  # that of tensor maps
    MEMBERS = (
        Member("TensorMap", "x_map"),
        Member("TensorMap", "x_scale_map"),
        Member("TensorMap", "code_map", length=2),
        Member("TensorMap", "scale_map", length=2),
        *Arguments.MEMBERS,
        Member("int", "band", "tiles of x whose rows stay in the L2 cache"),
        Member("u8", "end", length=-(sizeof(Arguments) + 4) % 64),
    )
    _fields_ = fields(MEMBERS)


class Boxes(NamedTuple):
    """What TMA copies at a time."""

    x_rows: int
    w_rows: int
    x_atoms: int  # of 128 rows, of scales
    w_atoms: int
    scale_groups: int  # of four scales along k


def code_map(codes: Tensor, rows: int, k: int, bits: int, operands: Operands, box: int) -> bytes:
    """Of codes [rows, k], copied in boxes of `box` rows and one panel."""
    index, address = codes.device.index, codes.data_ptr()
    if operands.unpacks(bits):
        return panel_map(index, address, f"uint{bits}_slots", rows, k, box)
    return panel_map(index, address, "uint8", rows, k * bits // 8, box)


def scale_map(
    scale: Tensor, matrices: int, rows: int, k: int, operands: Operands, atoms: int, groups: int
) -> bytes:
    """Of blocked scales [atom of 128 rows, scale group, word], copied in boxes of `atoms` by
    `groups`."""
    along_k = -(-k // (ATOM_COLUMNS * operands.block))
    down = matrices * -(-rows // ATOM_ROWS)
    sizes, strides = (_ATOM_WORDS, along_k, down), (_ATOM_WORDS, _ATOM_WORDS * along_k)
    box = (_ATOM_WORDS, groups, atoms)
    return tensor_map(scale.device.index, scale.data_ptr(), "uint32", sizes, strides, box)
