"""Validate, choose, launch, on formats and plain tensors; and the `torch.library` ops."""

from blockscale.ops.builds import builds
from blockscale.ops.choose import VERBS, Answer, Choice, answers, choose
from blockscale.ops.dispatcher import can_skip_dispatcher
from blockscale.ops.examples import example, examples
from blockscale.ops.explain import Explanation, explain
from blockscale.ops.library import (
    dequantize,
    gated_matmul,
    grouped_gated_matmul,
    grouped_matmul,
    matmul,
    quantize,
)
from blockscale.ops.matmul import MatmulCall, run_checked
from blockscale.ops.operand import Operand, plain
from blockscale.ops.plan import Plan, make_plan, why_copied
from blockscale.ops.prepared import prepared_layout
from blockscale.ops.proof.everything import Outcome, prove_all, to_prove
from blockscale.ops.proof.standing import Standing
from blockscale.ops.quantize import derive_tensor_scale, repack
from blockscale.ops.replay import keep_replay, run_replay
from blockscale.ops.tuning.report import Tuning
from blockscale.ops.tuning.sources import source_hash
from blockscale.ops.tuning.stored import machine_of
from blockscale.ops.tuning.tune import tune
from blockscale.ops.validate import (
    FLOAT_DTYPES,
    check_block,
    check_float,
    check_not_negative,
    check_positive,
)
from blockscale.ops.versions import versions

__all__ = [
    "FLOAT_DTYPES",
    "VERBS",
    "Answer",
    "Choice",
    "Explanation",
    "MatmulCall",
    "Operand",
    "Outcome",
    "Plan",
    "Standing",
    "Tuning",
    "answers",
    "builds",
    "can_skip_dispatcher",
    "check_block",
    "check_float",
    "check_not_negative",
    "check_positive",
    "choose",
    "dequantize",
    "derive_tensor_scale",
    "example",
    "examples",
    "explain",
    "gated_matmul",
    "grouped_gated_matmul",
    "grouped_matmul",
    "keep_replay",
    "machine_of",
    "make_plan",
    "matmul",
    "plain",
    "prepared_layout",
    "prove_all",
    "quantize",
    "repack",
    "run_checked",
    "run_replay",
    "source_hash",
    "to_prove",
    "tune",
    "versions",
    "why_copied",
]
