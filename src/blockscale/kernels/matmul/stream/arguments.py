"""What cuda/kernels/stream.cu is launched with: the structs of gemm/shape.cuh, and tensor maps."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_longlong, c_ubyte, c_void_p, sizeof

from blockscale.kernels.contract import Parts
from blockscale.kernels.matmul.stream.config import Config
from blockscale.problem import Problem
from blockscale.runtime.cuda import tensor_map


class Weight(Structure):
    _fields_ = tuple(
        (name, c_void_p) for name in ("codes", "scale", "tensor_scale", "table", "bias")
    )


class Arguments(Structure):
    _fields_ = (
        ("m", c_int),
        ("n", c_int),
        ("k", c_int),
        ("settled", c_int),
        ("bias_dtype", c_int),
        ("out_dtype", c_int),
        ("out", c_void_p),
        ("out_stride", c_longlong),
        ("x", c_void_p),
        ("x_stride", c_longlong),
        ("x_scale", c_void_p),
        ("weight", Weight * 2),
        ("groups", c_int),
        ("sizes_are_64_bits", c_int),
        ("activation", c_int),
        ("alpha", c_float),
        ("limit", c_float),
        ("x_block_scale", c_void_p),
        ("x_block_stride", c_longlong),
        ("group_sizes", c_void_p),
        ("partial", c_void_p),
        ("arrivals", c_void_p),
    )


TensorMap = c_ubyte * 128  # a CUtensorMap


class WgmmaArguments(Structure):
    """Of kernels to which the hardware copies x and weights by itself."""

    _fields_ = (
        ("x_map", TensorMap),
        ("code_map", TensorMap * 2),
        ("scale_map", TensorMap * 2),
        *Arguments._fields_,
        ("_end", c_ubyte * (-sizeof(Arguments) % 64)),  # maps are aligned, and so are all of them
    )


def weight_maps(problem: Problem, config: Config, part: Parts) -> tuple[bytes, bytes]:
    """Of codes and scales in words of 4 bytes: [tile, unit of 64 k, word] and [tile, scale group of
    eight blocks, word], of which a CTA takes its tiles and one stage at a time."""
    format = problem.w_kind.format
    tiles = problem.groups * -(-problem.n // 16)
    of_cta = config.weight_rows // 16 // (2 if problem.gated else 1)

    def described(address: int, words: int, along_k: int, of_stage: int) -> bytes:
        sizes, strides = (words, along_k, tiles), (words, words * along_k)
        box = words, of_stage, of_cta
        return tensor_map(part.codes.device.index, address, "uint32", sizes, strides, box)

    units, scale_groups = -(-problem.k // 64), -(-problem.k // (8 * format.block))
    stage_groups = max(1, config.tile_k // (8 * format.block))
    return (
        described(part.codes.data_ptr(), 32 * format.element.bits, units, config.tile_k // 64),
        described(part.scale.data_ptr(), 32, scale_groups, stage_groups),
    )
