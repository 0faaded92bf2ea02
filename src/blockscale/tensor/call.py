"""A verb's arguments in the terms of `ops`, whose calls have operands, specs and no defaults."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import Format, activation_format
from blockscale.numerics import Activation
from blockscale.tensor.qtensor import QTensor


def describe_call(
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
    """Types are checked here, everything else by the op."""
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
    format = None if x_format is None else activation_format(x_format)
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


def _scalar(value: float | Tensor | None, device: torch.device) -> Tensor | None:
    if value is None or isinstance(value, Tensor):
        return value
    if not isinstance(value, (int, float)):
        raise TypeError(f"x_tensor_scale must be a number or a Tensor, got {value!r}")
    return torch.tensor(value, dtype=torch.float32, device=device)
