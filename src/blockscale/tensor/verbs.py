"""Products with quantised weights, and why they run as they do."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import Codebook, Format, parse_spec
from blockscale.formats import format as find_format
from blockscale.numerics import Activation, parse_activation
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
    error for CPU tensors and is clipped on the device, where nothing synchronises.
    """
    return _run(
        x,
        [experts],
        [bias],
        group_sizes=group_sizes,
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
        group_sizes=group_sizes,
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
    weights = [w] if up is None else [w, up]
    call = _call(
        x,
        weights,
        [None] * len(weights),
        group_sizes=group_sizes,
        activation=activation if up is not None else None,
        x_format=x_format,
        out_dtype=out_dtype,
    )
    return ops.explain(call.problem(), call.x.device)


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
    first, rest = call.weights[0], call.weights[1:]
    return ops.MATMULS[call.verb](
        *call.x,
        first.tensors,
        rest[0].tensors if rest else [],
        first.kind,
        first.shape,
        biases[0],
        biases[1] if rest else None,
        group_sizes,
        call.activation,
        call.x_format,
        call.x_tensor_scale,
        call.out_dtype,
    )


def _call(
    x: Tensor | QTensor,
    weights: list[QTensor],
    biases: list[Tensor | None],
    *,
    group_sizes: Tensor | None = None,
    activation: str | Activation | None = None,
    x_format: Format | str | None = None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> ops.MatmulCall:
    """The checked call."""
    for weight in weights:
        if not isinstance(weight, QTensor):
            raise TypeError(
                f"weights must be QTensors, got {type(weight).__name__}: bs.quantize(w, format)"
            )
    if isinstance(x, QTensor):
        operand, default_dtype = x.operand, torch.bfloat16
    elif isinstance(x, Tensor):
        operand, default_dtype = ops.plain(x), x.dtype
    else:
        raise TypeError(f"x must be a Tensor or a QTensor, got {type(x).__name__}")
    call = ops.MatmulCall(
        operand,
        [weight.operand for weight in weights],
        biases,
        group_sizes,
        "" if activation is None else str(parse_activation(activation)),
        _activation_spec(x_format),
        _scalar(x_tensor_scale, operand.device),
        out_dtype or default_dtype,
    )
    call.validate()
    return call


def _activation_spec(x_format: Format | str | None) -> str:
    if x_format is None:
        return ""
    if x_format == "int8":
        raise ValueError("x_format='int8' needs the native CPU kernels, which this build lacks")
    format = find_format(x_format)
    if isinstance(format.element, Codebook) and format != parse_spec(format.spec):
        raise ValueError(
            f"x_format={format}: a codebook of its own cannot be applied on the fly: "
            "quantise x first, bs.quantize(x, format, tensor_scale='row')"
        )
    return format.spec


def _scalar(value: float | Tensor | None, device: torch.device) -> Tensor | None:
    if value is None or isinstance(value, Tensor):
        return value
    return torch.tensor(value, dtype=torch.float32, device=device)
