"""Conversions as `torch.library` ops: opaque to compilers, with fake kernels.

Everything that is not a tensor crosses as a string, a dtype or a list of numbers, and all storage
is uint8. A call is checked inside the op, real or fake, so that compilers trace next to nothing.
The products and their gradients are in `product_ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from blockscale.ops.operand import Operand
from blockscale.ops.product_ops import OpLibrary
from blockscale.ops.quantize import (
    derive_tensor_scale,
    kept_codebook,
    run_dequantize,
    run_quantize,
    storage,
)
from blockscale.ops.untraced import untraced
from blockscale.problem import parse_kind

_ops = OpLibrary("blockscale", None)


def _define(name: str, schema: str, real: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    op = _ops.define(name, schema, untraced(real), fake)
    _ops.refuse_gradient(name, op)
    return op


def _quantize(
    x: Tensor,
    kind: str,
    codebook: Sequence[float],
    rule: str,
    tensor_scale: Tensor | None,
    per_row: bool,
    importance: Tensor | None = None,
) -> list[Tensor]:
    """codes, scale, then what the format has of tensor_scale and codebook."""
    parsed = parse_kind(kind)
    # From a kept copy, so that nothing comes from the host: a CUDA graph may be captured. Cloned,
    # since two results must not share their memory.
    table = kept_codebook(tuple(codebook), x.device).clone() if codebook else None
    scalars = None
    if parsed.format.has_tensor_scale:  # cloned where given: an output must not be an input
        derived = derive_tensor_scale(x, parsed.format, per_row) if tensor_scale is None else None
        scalars = derived if tensor_scale is None else tensor_scale.clone()
    codes, scale = run_quantize(x, parsed, rule, scalars, table, importance)
    return [part for part in (codes, scale, scalars, table) if part is not None]


def _quantize_fake(
    x: Tensor,
    kind: str,
    codebook: Sequence[float],
    rule: str,
    tensor_scale: Tensor | None,
    per_row: bool,
    importance: Tensor | None = None,
) -> list[Tensor]:
    parsed = parse_kind(kind)
    parts = [*storage(parsed, tuple(x.shape), x.device)]
    if parsed.format.has_tensor_scale:
        lead = x.shape[:-1] if per_row else x.shape[:-2]
        shape = lead if tensor_scale is None else tensor_scale.shape
        parts.append(x.new_empty(shape, dtype=torch.float32))
    if codebook:
        parts.append(x.new_empty(len(codebook), dtype=torch.float32))
    return parts


def _dequantize(q: Sequence[Tensor], kind: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return run_dequantize(Operand(q, kind, shape), dtype)


quantize = _define(
    "quantize",
    "(Tensor x, str kind, float[] codebook, str rule, Tensor? tensor_scale, bool per_row,"
    " Tensor? importance=None) -> Tensor[]",
    _quantize,
    _quantize_fake,
)

dequantize = _define(
    "dequantize",
    "(Tensor[] q, str kind, SymInt[] shape, ScalarType dtype) -> Tensor",
    _dequantize,
    lambda q, kind, shape, dtype: q[0].new_empty(shape, dtype=dtype),
)
