"""Products with quantised weights, and why they run as they do."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import INT8, Format
from blockscale.formats import format as find_format
from blockscale.numerics import Activation
from blockscale.runtime import checks_enabled, is_deterministic
from blockscale.tensor.qtensor import QTensor


def matmul(
    x: Tensor | QTensor,
    w: QTensor,
    x_format: Format | str | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    x_tensor_scale: float | Tensor | None = None,
) -> Tensor:
    """x @ w.T: x [..., k] with w [n, k], or x [l, m, k] with w [l, n, k].

    x_format        None: the weights alone are quantised. A Format: x is quantised on the fly, with
                    one tensor scale per row or the given `x_tensor_scale`
    out_dtype       x's by default; bfloat16 where x is a QTensor
    """
    if x_format is None and x_tensor_scale is None and out_dtype is None:
        y = _quick(x, w, None)
        if y is not None:
            return y
    return _run(
        x, [w], [None], x_format=x_format, x_tensor_scale=x_tensor_scale, out_dtype=out_dtype
    )


def linear(
    x: Tensor | QTensor,
    w: QTensor,
    bias: Tensor | None = None,
    *,
    x_format: Format | str | None = None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x @ w.T + bias; bias [n], or [l, n] for a batch of weights."""
    if x_format is None and x_tensor_scale is None and out_dtype is None:
        y = _quick(x, w, bias)
        if y is not None:
            return y
    return _run(
        x, [w], [bias], x_format=x_format, x_tensor_scale=x_tensor_scale, out_dtype=out_dtype
    )


def gated_matmul(
    x: Tensor | QTensor,
    gate: QTensor,
    up: QTensor,
    activation: str | Activation = "silu",
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    *,
    x_format: Format | str | None = None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """act(x @ gate.T + gate_bias) * (x @ up.T + up_bias), in one pass over x.

    activation: "silu", "gelu", "gelu_tanh" or `swiglu_oai(alpha, limit)`.
    """
    return _run(
        x,
        [gate, up],
        [gate_bias, up_bias],
        activation=activation,
        x_format=x_format,
        x_tensor_scale=x_tensor_scale,
        out_dtype=out_dtype,
    )


def grouped_matmul(
    x: Tensor | QTensor,
    experts: QTensor,
    group_sizes: Tensor,
    bias: Tensor | None = None,
    *,
    x_format: Format | str | None = None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Rows of x [m, k], sorted by expert, each times its expert's matrix: experts [e, n, k].

    group_sizes: int32 or int64 [e]. Rows past their sum come out as zeros. A sum above m is an
    error for CPU tensors and is clipped on the GPU.
    """
    return _run(
        x,
        [experts],
        [bias],
        group_sizes=_present(group_sizes),
        x_format=x_format,
        x_tensor_scale=x_tensor_scale,
        out_dtype=out_dtype,
    )


def grouped_gated_matmul(
    x: Tensor | QTensor,
    gate: QTensor,
    up: QTensor,
    group_sizes: Tensor,
    activation: str | Activation = "silu",
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    *,
    x_format: Format | str | None = None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """`gated_matmul` of each row with its expert's gate and up [e, n, k]; see `grouped_matmul`."""
    return _run(
        x,
        [gate, up],
        [gate_bias, up_bias],
        group_sizes=_present(group_sizes),
        activation=activation,
        x_format=x_format,
        x_tensor_scale=x_tensor_scale,
        out_dtype=out_dtype,
    )


def explain(
    x: Tensor | QTensor,
    w: QTensor,
    up: QTensor | None = None,
    *,
    group_sizes: Tensor | None = None,
    activation: str | Activation = "silu",
    x_format: Format | str | None = None,
    out_dtype: torch.dtype | None = None,
) -> ops.Explanation:
    """Which kernel runs for x and w, why each other one does not, and the least it can cost.

    With `up` it explains `gated_matmul`, with `group_sizes` the grouped verbs.
    """
    call = _described(x, w, up, group_sizes, activation, x_format, out_dtype)
    return ops.explain(call.problem(), call.x.device)


def tune(
    x: Tensor | QTensor,
    w: QTensor,
    up: QTensor | None = None,
    *,
    group_sizes: Tensor | None = None,
    activation: str | Activation = "silu",
    x_format: Format | str | None = None,
    out_dtype: torch.dtype | None = None,
    store: bool = True,
) -> ops.Tuning:
    """Time every way to multiply x and w on this device, and keep the result: calls like it take
    the fastest from then on, in this process and in later ones.

    Takes what `explain` takes. Shapes, formats and dtypes count, values do not: it is measured on
    random operands, with rows spread over experts at random. A result serves the same number of
    rows only, with and without a bias. With `store=False` nothing is kept, and nothing changes.
    """
    call = _described(x, w, up, group_sizes, activation, x_format, out_dtype)
    return ops.tune(call.problem(), call.x.device, store=store)


def _described(
    x: Tensor | QTensor,
    w: QTensor,
    up: QTensor | None,
    group_sizes: Tensor | None,
    activation: str | Activation,
    x_format: Format | str | None,
    out_dtype: torch.dtype | None,
) -> ops.MatmulCall:
    """The call that `explain` and `tune` are asked about, checked."""
    call = _call(
        x,
        [w] if up is None else [w, up],
        [None] if up is None else [None, None],
        group_sizes=group_sizes,
        activation=None if up is None else activation,
        x_format=x_format,
        out_dtype=out_dtype,
    )
    call.validate()
    return call


def _run(
    x: Tensor | QTensor,
    weights: list[QTensor],
    biases: list[Tensor | None],
    *,
    group_sizes: Tensor | None = None,
    activation: str | Activation | None = None,
    x_format: Format | str | None = None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Check and run the call, or hand it to the verb's op where somebody watches."""
    key = None
    # int8 alone is left to kernels, which may have a plan for it.
    plain = x_format in (None, "int8") and x_tensor_scale is None
    if plain and _is_unobserved(x, biases):
        key = _plan_key(x, weights, biases, group_sizes, activation, x_format, out_dtype)
        if key is not None:
            plan = weights[0].plans.get(key)
            if plan is not None and plan.is_current:
                planned = plan(_planned(x), tuple(biases), group_sizes)
                asked = x_format or out_dtype or activation or group_sizes is not None
                if _run_quickly is not None and not asked and isinstance(x, Tensor):
                    ops.keep_quick_call(weights[0].quick_calls, key, plan, x, biases[0])
                return planned
    call = _call(
        x,
        weights,
        biases,
        group_sizes=group_sizes,
        activation=activation,
        x_format=x_format,
        x_tensor_scale=x_tensor_scale,
        out_dtype=out_dtype,
    )
    if ops.is_unobserved(call.tensors):
        if key is not None:
            plan = _new_plan(key, call, weights)
            if plan is not None:
                return plan(_planned(x), tuple(biases), group_sizes)
        return ops.run_checked(call)
    first, rest = call.weights[0], call.weights[1:]
    if rest:
        verb = ops.gated_matmul if group_sizes is None else ops.grouped_gated_matmul
    else:
        verb = ops.matmul if group_sizes is None else ops.grouped_matmul
    y: Tensor = verb(
        call.x.tensors,
        call.x.kind,
        call.x.shape,
        first.tensors,
        rest[0].tensors if rest else [],
        first.kind,
        first.shape,
        biases[0],
        biases[1] if rest else None,
        call.group_sizes,
        call.activation,
        call.x_format,
        call.x_codebook,
        call.x_tensor_scale,
        call.out_dtype,
    )
    return y


# Asked at every call, so found once.
_run_quickly, _is_compiling = ops.run_quickly, torch.compiler.is_compiling


def _quick(x: Tensor | QTensor, w: QTensor, bias: Tensor | None) -> Tensor | None:
    """A call like one before it; None where it takes more than that."""
    if _run_quickly is None or _is_compiling() or w.__class__ is not QTensor:
        return None
    return _run_quickly(w.quick_calls, x, bias)  # type: ignore[arg-type]  # x may be anything


_MOST_PLANS = 256  # kept with a weight: more would be shapes that do not come back


def _new_plan(key: Hashable, call: ops.MatmulCall, weights: list[QTensor]) -> ops.Plan | None:
    """Kept with the first weight; that there can be none is kept as well."""
    plans = weights[0].plans
    if key in plans and plans.get(key) is None:
        return None
    if len(plans) >= _MOST_PLANS:
        plans.clear()
    plans[key] = plan = ops.make_plan(call, tuple(weights[1:]))
    return plan


def _is_unobserved(x: Tensor | QTensor, biases: list[Tensor | None]) -> bool:
    if isinstance(x, Tensor):
        return ops.is_unobserved((x, *biases))
    return isinstance(x, QTensor) and ops.is_unobserved((*x.tensors, *biases))


def _planned(x: Tensor | QTensor) -> Tensor | ops.Operand:
    return x if isinstance(x, Tensor) else x.operand


def _plan_key(
    x: Tensor | QTensor,
    weights: list[QTensor],
    biases: list[Tensor | None],
    group_sizes: Tensor | None,
    activation: str | Activation | None,
    x_format: Format | str | None,
    out_dtype: torch.dtype | None,
) -> Hashable | None:
    """What calls on the same weights must agree in to share a plan; None for those without."""
    if weights[0].__class__ is not QTensor or not (
        (activation is None or isinstance(activation, (str, Activation)))
        and (out_dtype is None or isinstance(out_dtype, torch.dtype))
    ):
        return None  # an error, which is somebody else's to raise
    if group_sizes is not None and (not isinstance(group_sizes, Tensor) or _sizes_are_read(x)):
        return None  # likewise
    up = None if len(weights) == 1 else (id(weights[1]), _facts(biases[1]))
    of_x = _facts(x) if isinstance(x, Tensor) else _facts_of_codes(x)
    bias, sizes = _facts(biases[0]), _facts(group_sizes)
    return of_x, x_format, out_dtype, activation, is_deterministic(), bias, up, sizes


def _facts(tensor: Tensor | None) -> tuple[Any, ...] | None:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


def _facts_of_codes(x: QTensor) -> tuple[Any, ...]:
    return x.operand.kind, x.shape, _facts(x.codes), _facts(x.tensor_scale)


def _sizes_are_read(x: Tensor | QTensor) -> bool:
    """Whether group sizes must be looked at, call by call."""
    return x.device.type != "cuda" or checks_enabled()


def _call(
    x: Tensor | QTensor,
    weights: list[QTensor],
    biases: list[Tensor | None],
    *,
    group_sizes: Tensor | None,
    activation: str | Activation | None,
    x_format: Format | str | None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None,
) -> ops.MatmulCall:
    """The call in the terms of `ops`; types are checked here, everything else by the op."""
    operand, default_dtype = _x_operand(x)
    operands = [_weight_operand(weight) for weight in weights]
    gate, up = operands[0], operands[-1]
    if gate.kind != up.kind or gate.shape != up.shape:
        raise ValueError(
            f"gate and up must be alike, got {gate.kind} {gate.shape} and {up.kind} {up.shape}"
        )
    if len(weights) == 2 and (not activation or not isinstance(activation, (str, Activation))):
        raise TypeError(f"activation must be a name or bs.swiglu_oai(...), got {activation!r}")
    for name, tensor in (("bias", biases[0]), ("bias", biases[-1]), ("group_sizes", group_sizes)):
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a Tensor, got {type(tensor).__name__}")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"out_dtype must be a torch.dtype, got {out_dtype!r}")
    format = None if x_format is None else _activation_format(x_format)
    if format is not None and operand.shape:
        ops.check_block("x_format", "x", operand.shape[-1], format)
    return ops.MatmulCall(
        operand,
        operands,
        biases,
        group_sizes,
        "" if len(weights) == 1 else str(activation),
        "" if format is None else format.spec,
        () if format is None else format.codebook,
        _scalar(x_tensor_scale, operand.device),
        out_dtype or default_dtype,
    )


def _present(group_sizes: Tensor) -> Tensor:
    if group_sizes is None:
        raise TypeError("group_sizes is None: a grouped product needs the rows of each expert")
    return group_sizes


def _x_operand(x: Tensor | QTensor) -> tuple[ops.Operand, torch.dtype]:
    """x as ops take it, and the dtype of the result unless another is asked for."""
    if isinstance(x, QTensor):
        return x.operand, torch.bfloat16
    if isinstance(x, Tensor):
        return ops.plain(x), x.dtype
    raise TypeError(f"x must be a Tensor or a QTensor, got {type(x).__name__}")


def _weight_operand(weight: QTensor) -> ops.Operand:
    if not isinstance(weight, QTensor):
        raise TypeError(
            f"weights must be QTensors, got {type(weight).__name__}: bs.quantize(w, format)"
        )
    return weight.operand


def _activation_format(x_format: Format | str) -> Format:
    return INT8 if x_format == "int8" else find_format(x_format)


def _scalar(value: float | Tensor | None, device: torch.device) -> Tensor | None:
    if value is None or isinstance(value, Tensor):
        return value
    if not isinstance(value, (int, float)):
        raise TypeError(f"x_tensor_scale must be a number or a Tensor, got {value!r}")
    return torch.tensor(value, dtype=torch.float32, device=device)
