"""quantize, dequantize and repack: validate, choose, launch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from blockscale.formats import Format, parse_spec
from blockscale.kernels import Parts
from blockscale.kernels.repack.reference import by_layouts
from blockscale.layouts import Layout, canonical
from blockscale.ops.choose import bind
from blockscale.ops.dispatcher import can_skip_dispatcher
from blockscale.ops.operand import Operand, spread_over_rows
from blockscale.problem import Kind, Problem, dtype_name
from blockscale.runtime import Device, device_of


def derive_tensor_scale(x: Tensor, format: Format, per_row: bool) -> Tensor:
    """One per matrix (shape x.shape[:-2]) or one per row (x.shape[:-1])."""
    lead = x.shape[:-1] if per_row else x.shape[:-2]
    if x.numel() == 0:
        return torch.ones(lead, dtype=torch.float32, device=x.device)
    *_, n, k = x.shape
    groups = prod(x.shape[:-2])
    problem = _scale_problem(
        groups, n, k, "row" if per_row else "matrix", x.dtype, format, device_of(x.device)
    )
    out = torch.empty((groups, n) if per_row else groups, dtype=torch.float32, device=x.device)
    bind(problem)(x.reshape(groups, n, k), out)
    return out.reshape(lead)


@lru_cache(maxsize=1024)
def _scale_problem(
    groups: int, n: int, k: int, rule: str, dtype: torch.dtype, format: Format, device: Device
) -> Problem:
    return Problem(
        verb="tensor_scale",
        m=groups * n,
        n=0,
        k=k,
        groups=groups,
        rule=rule,
        x=dtype_name(dtype),
        w=str(Kind(format, canonical(format))),
        out="float32",
        device=device,
    )


def storage(kind: Kind, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Uninitialised codes and scale."""
    codes = kind.layout.code_storage_shape(kind.format, shape)
    scale = kind.layout.scale_storage_shape(kind.format, shape)
    return (
        torch.empty(codes, dtype=torch.uint8, device=device),
        torch.empty(scale, dtype=torch.uint8, device=device),
    )


def run_quantize(
    x: Tensor,  # [..., n, k]
    kind: Kind,
    rule: str,
    tensor_scale: Tensor | None,  # float32, one per matrix or per row
    codebook: Tensor | None,
    importance: Tensor | None = None,  # float32 [k] or [..., k], for the rule "mse"
) -> tuple[Tensor, Tensor]:
    """Codes and scales, in the layout of `kind`."""
    *lead, n, k = x.shape
    groups = prod(lead)
    codes, scale = storage(kind, tuple(x.shape), x.device)
    if x.numel() == 0:
        return codes, scale
    weighted = importance is not None
    problem = _problem(groups * n, k, rule, x.dtype, str(kind), device_of(x.device), weighted)
    row_scale = None
    if tensor_scale is not None:
        row_scale = spread_over_rows(tensor_scale, tuple(x.shape[:-1])).reshape(groups, n)
    bind(problem)(
        x.reshape(groups, n, k),
        row_scale,
        codebook,
        codes.view(groups, *codes.shape[len(lead) :]),
        scale.view(groups, *scale.shape[len(lead) :]),
        *([] if importance is None else [importance.expand(*lead, k).reshape(groups, k)]),
    )
    return codes, scale


@lru_cache(maxsize=1024)
def _problem(
    m: int,
    k: int,
    rule: str,
    dtype: torch.dtype,
    kind: str,
    device: Device,
    weighted: bool = False,
    derives: bool = False,
) -> Problem:
    """Remembered, since activations are quantised at every call."""
    return Problem(
        verb="quantize",
        m=m,
        n=0,
        k=k,
        rule=rule,
        weighted=weighted,
        derives=derives,
        x=dtype_name(dtype),
        w=kind,
        out="uint8",
        device=device,
    )


def quantize_activations(
    x: Tensor, spec: str, table: Sequence[float], tensor_scale: Tensor | None
) -> Operand:
    """x [..., k] quantised on the fly: absmax scales, one tensor scale per row or a given one."""
    format = parse_spec(spec)
    kind = Kind(format, canonical(format))
    rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    codes, scale, tensor_scale, codebook = _quantize_rows(rows, kind, table, tensor_scale, x)
    tensors = [part for part in (codes, scale, tensor_scale, codebook) if part is not None]
    shape = list(x.shape)
    if x.dim() != 2:
        tensors[0] = codes.reshape(*shape[:-1], codes.shape[-1])
        tensors[1] = scale.reshape(*shape[:-1], scale.shape[-1])
        if tensor_scale is not None:
            tensors[2] = tensor_scale.reshape(shape[:-1])
    return Operand(tensors, str(kind), shape)


def quantize_blocked_activations(
    x: Tensor, kind: Kind, tensor_scale: Tensor | None, matrices: int
) -> Operand:
    """The same with blocked scales, as block-scaled tensor cores read them: of each of so many
    matrices of rows."""
    *lead, k = x.shape
    rows = x.reshape(matrices, prod(lead) // max(matrices, 1), k)
    codes, scale, tensor_scale, _ = _quantize_rows(rows, kind, (), tensor_scale, x)
    tensors = [codes.reshape(*lead, codes.shape[-1]), scale]
    if tensor_scale is not None:
        tensors.append(tensor_scale.reshape(lead))
    return Operand(tensors, str(kind), list(x.shape))


def _quantize_rows(
    rows: Tensor,  # [..., rows, k]
    kind: Kind,
    table: Sequence[float],
    tensor_scale: Tensor | None,
    x: Tensor,  # the same as it was given
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Codes, scale, tensor scales and codebook."""
    format = kind.format
    codebook = kept_codebook(tuple(table), rows.device) if table else None
    if not format.has_tensor_scale:
        return (*run_quantize(rows, kind, "absmax", None, codebook), None, codebook)
    if tensor_scale is None:
        return (*_quantize_deriving(rows, kind, codebook), codebook)
    each = tensor_scale.expand(x.shape[:-1]).reshape(rows.shape[:-1])
    return (*run_quantize(rows, kind, "absmax", each, codebook), each, codebook)


def _quantize_deriving(
    rows: Tensor, kind: Kind, codebook: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scale and tensor scales of x [rows, k] or [matrices, rows, k], by one launch."""
    *lead, m, k = rows.shape
    groups = prod(lead)
    codes, scale = storage(kind, tuple(rows.shape), rows.device)
    tensor_scale = torch.ones(rows.shape[:-1], dtype=torch.float32, device=rows.device)
    if rows.numel():
        where = device_of(rows.device)
        problem = _problem(groups * m, k, "absmax", rows.dtype, str(kind), where, derives=True)
        bind(problem)(
            rows.view(groups, m, k),
            tensor_scale.view(groups, m),
            codebook,
            codes.view(groups, *codes.shape[len(lead) :]),
            scale.view(groups, *scale.shape[len(lead) :]),
        )
    return codes, scale, tensor_scale


@lru_cache(maxsize=64)
def kept_codebook(table: tuple[float, ...], device: torch.device) -> Tensor:
    """The same table serves call after call."""
    return torch.tensor(table, dtype=torch.float32, device=device)


def run_dequantize(operand: Operand, dtype: torch.dtype) -> Tensor:
    shape = tuple(operand.shape)
    *lead, n, k = shape
    groups = prod(lead)
    parts = operand.parts()
    out = torch.empty(groups, n, k, dtype=dtype, device=operand.device)
    if out.numel() == 0:
        return out.reshape(shape)
    row_scale = None
    if parts.tensor_scale is not None:
        row_scale = spread_over_rows(parts.tensor_scale, shape[:-1]).reshape(groups, n)
    problem = Problem(
        verb="dequantize",
        m=groups * n,
        n=0,
        k=k,
        x=dtype_name(dtype),
        w=operand.kind,
        out=dtype_name(dtype),
        device=device_of(operand.device),
    )
    codes = parts.codes.reshape(groups, *parts.codes.shape[len(lead) :])
    scale = parts.scale.reshape(groups, *parts.scale.shape[len(lead) :])
    bind(problem, (Parts(codes, scale, row_scale, parts.codebook),))(out)
    return out.reshape(shape)


def repack(
    codes: Tensor,
    scale: Tensor,
    format: Format,
    shape: tuple[int, ...],
    now: Layout,
    target: Layout,
) -> tuple[Tensor, Tensor]:
    """Codes and scale in another layout, bit for bit the same tensor."""
    if not can_skip_dispatcher((codes, scale)):
        return by_layouts(codes, scale, format, shape, now, target)
    *lead, m, k = shape
    problem = Problem(
        verb="repack",
        m=m,
        n=0,
        k=k,
        groups=prod(lead),
        x=str(Kind(format, now)),
        w=str(Kind(format, target)),
        out="uint8",
        device=device_of(codes.device),
    )
    parts = bind(problem)(_matrices(codes, shape), _matrices(scale, shape))
    codes, scale = (part.reshape(*lead, *part.shape[1:]) for part in parts)
    return codes, scale


def _matrices(storage: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[..., bytes] of so many leading dimensions as one."""
    lead = len(shape) - 2
    return storage.reshape(prod(shape[:-2]), *storage.shape[lead:])
