"""Names that people bring with them, a few lines each on top of the verbs."""

from blockscale.compat.cute import (
    BlockScaledBasicChunk,
    OperandMajorMode,
    tile_atom_to_shape_SF,
)
from blockscale.compat.fp4 import (
    FP4WeightCache,
    fp4_cached_linear,
    fp4_linear,
    fp4_matmul,
    fp4_quantize,
)
from blockscale.compat.kbit import (
    create_normal_float_codebook,
    dequantize_kbit,
    kbit_gemm,
    quantize_kbit,
    repack_for_gemm,
)
from blockscale.compat.kbit_grouped import kbit_grouped_gemm
from blockscale.compat.linear_nbit import LinearNbit

__all__ = [
    "BlockScaledBasicChunk",
    "FP4WeightCache",
    "LinearNbit",
    "OperandMajorMode",
    "create_normal_float_codebook",
    "dequantize_kbit",
    "fp4_cached_linear",
    "fp4_linear",
    "fp4_matmul",
    "fp4_quantize",
    "kbit_gemm",
    "kbit_grouped_gemm",
    "quantize_kbit",
    "repack_for_gemm",
    "tile_atom_to_shape_SF",
]
