"""What the native CPU library takes: the structs of csrc/abi.h, field by field, and its numbers.

tests/native/test_abi.py compiles the header to hold both to each other.
"""

from __future__ import annotations

from ctypes import Structure, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p

ABI_VERSION = 12
ISAS = ("scalar", "avx2", "avx512", "amx", "neon", "dotprod", "i8mm", "bf16")
_LINES = (ISAS[:4], ISAS[4:])  # of x86 and all others, and of ARM: each includes those before it
DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2, "uint8": 3}  # uint8: codes of int8 elements
ACTIVATIONS = {"": 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "swiglu_oai": 4}
DECODERS = {"table": 0, "e4m3": 1, "e5m2": 2}
CODE_LAYOUTS = {"bits": 0, "planes": 1, "cpu_tiles": 2}
ALGORITHMS = {"stream": 0, "gemm": 1, "int8": 2, "amx": 3, "slices": 4, "bfmmla": 5}
SEARCHES = {"": 0, "mse": 1, "four_over_six": 2}


def isas_up_to(best: str) -> tuple[str, ...]:
    """What a CPU can run whose best instruction set this is."""
    line = next(each for each in _LINES if best in each)
    return line[: line.index(best) + 1]


class OpenMp(Structure):
    """Functions of an OpenMP runtime, by address: csrc/runtime/openmp.h."""

    _fields_ = (
        ("parallel", c_void_p),
        ("thread_num", c_void_p),
        ("max_threads", c_void_p),
        ("num_procs", c_void_p),
        ("in_parallel", c_void_p),
        ("pause", c_void_p),
    )


class Format(Structure):
    _fields_ = (
        ("decoder", c_int32),
        ("bits", c_int32),
        ("block", c_int32),
        ("scale_bytes", c_int32),
        ("table", c_void_p),
        ("scale_table", c_void_p),
        ("scale_low", c_uint32),
        ("scale_plain", c_uint32),
        ("scale_shift", c_uint32),
        ("scale_add", c_uint32),
    )


class Weight(Structure):
    _fields_ = (
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("tensor_scale", c_void_p),
        ("bias", c_void_p),
        ("bias_dtype", c_int32),
    )


class Matmul(Structure):
    _fields_ = (
        ("format", Format),
        ("up_table", c_void_p),
        ("gate", Weight),
        ("up", Weight),
        ("groups", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("row_begin", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("x_dtype", c_int32),
        ("x_scale", c_void_p),
        ("x_block_scale", c_void_p),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("out_dtype", c_int32),
        ("activation", c_int32),
        ("alpha", c_float),
        ("limit", c_float),
        ("isa", c_int32),
        ("threads", c_int32),
    )


class RmsNorm(Structure):
    _fields_ = (
        ("weight", c_void_p),
        ("dtype", c_int32),
        ("epsilon", c_float),
    )


class DecoderProduct(Structure):
    _fields_ = (
        ("call", Matmul),
        ("algorithm", c_int32),
    )


class DecoderLayer(Structure):
    _fields_ = (
        ("attention_norm", RmsNorm),
        ("mlp_norm", RmsNorm),
        ("q_norm", RmsNorm),
        ("k_norm", RmsNorm),
        ("q", DecoderProduct),
        ("k", DecoderProduct),
        ("v", DecoderProduct),
        ("o", DecoderProduct),
        ("gate_up", DecoderProduct),
        ("down", DecoderProduct),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("head_stride", c_int64),
    )


class Decode(Structure):
    _fields_ = (
        ("layers", c_void_p),
        ("count", c_int64),
        ("norm", RmsNorm),
        ("hidden", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("intermediate", c_int64),
        ("position", c_int64),
        ("tokens", c_int64),
        ("rotation", c_void_p),
        ("attention_scale", c_float),
        ("int8", c_int32),
        ("x", c_void_p),
        ("out", c_void_p),
        ("x_dtype", c_int32),
        ("cache_dtype", c_int32),
        ("isa", c_int32),
        ("threads", c_int32),
    )


class SmallFloat(Structure):
    _fields_ = (
        ("mantissa", c_int32),
        ("bias", c_int32),
        ("largest", c_float),
        ("carries", c_int32),
    )


class ScaleRule(Structure):
    _fields_ = (
        ("search", c_int32),
        ("power_of_two", c_int32),
        ("carry_from", c_double),
        ("max_exponent", c_int32),
        ("nan_code", c_int32),
        ("element_max", c_float),
        ("least", c_float),
        ("scale", SmallFloat),
        ("max_code", c_int32),
    )


class StridedBatch(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("group_stride", c_int64),
        ("row_stride", c_int64),
    )


class Quantize(Structure):
    _fields_ = (
        ("format", Format),
        ("rule", ScaleRule),
        ("element", SmallFloat),
        ("is_float", c_int32),
        ("code_layout", c_int32),
        ("groups", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("x", StridedBatch),
        ("x_column_stride", c_int64),
        ("x_dtype", c_int32),
        ("tensor_scale", c_void_p),
        ("importance", c_void_p),
        ("codes", StridedBatch),
        ("scales", StridedBatch),
        ("isa", c_int32),
        ("threads", c_int32),
    )


class Dequantize(Structure):
    _fields_ = (
        ("format", Format),
        ("code_layout", c_int32),
        ("groups", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("codes", StridedBatch),
        ("scales", StridedBatch),
        ("tensor_scale", c_void_p),
        ("out", StridedBatch),
        ("out_dtype", c_int32),
        ("isa", c_int32),
        ("threads", c_int32),
    )


class Repack(Structure):
    _fields_ = (
        ("bits", c_int32),
        ("block", c_int32),
        ("scale_bytes", c_int32),
        ("code_layout", c_int32),
        ("groups", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("codes", StridedBatch),
        ("scales", StridedBatch),
        ("codes_out", c_void_p),
        ("scales_out", c_void_p),
        ("isa", c_int32),
        ("threads", c_int32),
    )


class Amax(Structure):
    _fields_ = (
        ("rows", c_int64),
        ("k", c_int64),
        ("x", c_void_p),
        ("row_stride", c_int64),
        ("column_stride", c_int64),
        ("dtype", c_int32),
        ("out", c_void_p),
        ("isa", c_int32),
        ("threads", c_int32),
    )


__all__ = [
    "ABI_VERSION",
    "ACTIVATIONS",
    "ALGORITHMS",
    "CODE_LAYOUTS",
    "DECODERS",
    "DTYPES",
    "ISAS",
    "SEARCHES",
    "Amax",
    "Decode",
    "DecoderLayer",
    "DecoderProduct",
    "Dequantize",
    "Format",
    "Matmul",
    "OpenMp",
    "Quantize",
    "Repack",
    "RmsNorm",
    "ScaleRule",
    "SmallFloat",
    "StridedBatch",
    "Weight",
    "isas_up_to",
]
