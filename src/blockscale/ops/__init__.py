"""Validate, choose, launch, on formats and plain tensors; and the `torch.library` ops."""

from blockscale.ops.arguments import op_arguments
from blockscale.ops.builds import builds
from blockscale.ops.choose import VERBS, Answer, answers, choose
from blockscale.ops.conversion_ops import dequantize, quantize
from blockscale.ops.decoder import (
    DecoderCall,
    DecoderLayer,
    DecoderShape,
    Norm,
    bind_decoder,
)
from blockscale.ops.dispatcher import (
    can_skip_dispatcher,
    has_only_gradients,
    is_differentiated_by_transforms,
    needs_gradient,
)
from blockscale.ops.examples import example, examples
from blockscale.ops.explain import Explanation, explain, tensor_memory
from blockscale.ops.gradients import (
    Forward,
    differentiable,
    differentiable_again,
    forward_facts,
    needed_tensors,
)
from blockscale.ops.matmul import MatmulCall, run_checked
from blockscale.ops.operand import Operand, plain
from blockscale.ops.plan import Plan, make_plan, why_copied
from blockscale.ops.prepared import prepared_layout, x_layout
from blockscale.ops.product_ops import (
    gated_matmul,
    grouped_gated_matmul,
    grouped_matmul,
    input_grad,
    matmul,
)
from blockscale.ops.proof.everything import Outcome, prove_all, to_prove
from blockscale.ops.proof.standing import Standing
from blockscale.ops.quantize import derive_tensor_scale, repack
from blockscale.ops.replay import keep_replay, run_replay
from blockscale.ops.rule import Choice
from blockscale.ops.transforms import run_transformed
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
    "DecoderCall",
    "DecoderLayer",
    "DecoderShape",
    "Explanation",
    "Forward",
    "MatmulCall",
    "Norm",
    "Operand",
    "Outcome",
    "Plan",
    "Standing",
    "Tuning",
    "answers",
    "bind_decoder",
    "builds",
    "can_skip_dispatcher",
    "check_block",
    "check_float",
    "check_not_negative",
    "check_positive",
    "choose",
    "dequantize",
    "derive_tensor_scale",
    "differentiable",
    "differentiable_again",
    "example",
    "examples",
    "explain",
    "forward_facts",
    "gated_matmul",
    "grouped_gated_matmul",
    "grouped_matmul",
    "has_only_gradients",
    "input_grad",
    "is_differentiated_by_transforms",
    "keep_replay",
    "machine_of",
    "make_plan",
    "matmul",
    "needed_tensors",
    "needs_gradient",
    "op_arguments",
    "plain",
    "prepared_layout",
    "prove_all",
    "quantize",
    "repack",
    "run_checked",
    "run_replay",
    "run_transformed",
    "source_hash",
    "tensor_memory",
    "to_prove",
    "tune",
    "versions",
    "why_copied",
    "x_layout",
]
