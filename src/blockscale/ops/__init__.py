"""Validate, choose, launch, on formats and plain tensors; and the `torch.library` ops."""

from blockscale.kernels.prepared import prepared_layout
from blockscale.ops.choose import VERBS, Answer, Choice, answers, choose
from blockscale.ops.explain import Explanation, explain
from blockscale.ops.library import (
    dequantize,
    gated_matmul,
    grouped_gated_matmul,
    grouped_matmul,
    matmul,
    quantize,
)
from blockscale.ops.matmul import MatmulCall
from blockscale.ops.operand import Operand, plain
from blockscale.ops.quantize import codebook_tensor, repack
from blockscale.ops.validate import check_block, check_float

__all__ = [
    "VERBS",
    "Answer",
    "Choice",
    "Explanation",
    "MatmulCall",
    "Operand",
    "answers",
    "check_block",
    "check_float",
    "choose",
    "codebook_tensor",
    "dequantize",
    "explain",
    "gated_matmul",
    "grouped_gated_matmul",
    "grouped_matmul",
    "matmul",
    "plain",
    "prepared_layout",
    "quantize",
    "repack",
]
