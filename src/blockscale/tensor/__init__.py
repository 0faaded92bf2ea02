"""QTensor and the public verbs."""

from blockscale.tensor.qtensor import QTensor
from blockscale.tensor.quantize import fit_codebook, quantize
from blockscale.tensor.shard import cat, part_range, shard
from blockscale.tensor.verbs import (
    explain,
    gated_matmul,
    grouped_gated_matmul,
    grouped_matmul,
    linear,
    matmul,
    tune,
)

__all__ = [
    "QTensor",
    "cat",
    "explain",
    "fit_codebook",
    "gated_matmul",
    "grouped_gated_matmul",
    "grouped_matmul",
    "linear",
    "matmul",
    "part_range",
    "quantize",
    "shard",
    "tune",
]
