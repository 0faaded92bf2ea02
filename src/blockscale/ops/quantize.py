"""quantize, dequantize and repack: validate, choose, launch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from blockscale.formats import Format, parse_spec
from blockscale.kernels import Parts
from blockscale.kernels.repack import pack_cpu_tiles, packs_cpu_tiles
from blockscale.kernels.repack_fragments import pack_fragments, packs_fragments
from blockscale.kernels.tensor_scale import tensor_scales
from blockscale.layouts import Layout, canonical
from blockscale.ops.choose import choose, launch
from blockscale.ops.dispatcher import can_skip_dispatcher
from blockscale.ops.operand import Operand, spread_over_rows
from blockscale.problem import Kind, Problem, dtype_name
from blockscale.runtime import target_of


def derive_tensor_scale(x: Tensor, format: Format, per_row: bool) -> Tensor:
    """One per matrix (shape x.shape[:-2]) or one per row (x.shape[:-1])."""
    lead = x.shape[:-1] if per_row else x.shape[:-2]
    if x.numel() == 0:
        return torch.ones(lead, dtype=torch.float32, device=x.device)
    matrices = x.reshape(prod(x.shape[:-2]), *x.shape[-2:])
    return tensor_scales(matrices, format, per_row).reshape(lead)


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
    problem = _problem(groups * n, k, rule, x.dtype, str(kind), target_of(x.device), weighted)
    row_scale = None
    if tensor_scale is not None:
        row_scale = spread_over_rows(tensor_scale, tuple(x.shape[:-1])).reshape(groups, n)
    launch(
        problem,
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
    m: int, k: int, rule: str, dtype: torch.dtype, kind: str, target: str, weighted: bool = False
) -> Problem:
    """Remembered, since activations are quantised at every call."""
    return Problem(
        verb="quantize",
        m=m,
        n=0,
        k=k,
        rule=rule,
        weighted=weighted,
        x=dtype_name(dtype),
        w=kind,
        out="uint8",
        target=target,
    )


def quantize_activations(
    x: Tensor, spec: str, table: Sequence[float], tensor_scale: Tensor | None
) -> Operand:
    """x [..., k] quantised on the fly: absmax scales, one tensor scale per row or a given one."""
    format = parse_spec(spec)
    kind = Kind(format, canonical(format))
    rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    if not format.has_tensor_scale:
        tensor_scale = None
    elif tensor_scale is not None:
        tensor_scale = tensor_scale.expand(x.shape[:-1]).reshape(len(rows))
    codebook = kept_codebook(tuple(table), x.device) if table else None
    if format.has_tensor_scale and tensor_scale is None:
        codes, scale, tensor_scale = _quantize_deriving(rows, kind, codebook)
    else:
        codes, scale = run_quantize(rows, kind, "absmax", tensor_scale, codebook)
    tensors = [part for part in (codes, scale, tensor_scale, codebook) if part is not None]
    shape = list(x.shape)
    if x.dim() != 2:
        tensors[0] = codes.reshape(*shape[:-1], codes.shape[-1])
        tensors[1] = scale.reshape(*shape[:-1], scale.shape[-1])
        if tensor_scale is not None:
            tensors[2] = tensor_scale.reshape(shape[:-1])
    return Operand(tensors, str(kind), shape)


def _quantize_deriving(
    rows: Tensor, kind: Kind, codebook: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scale and tensor scales of x [rows, k]: in one launch by a kernel that can."""
    m, k = rows.shape
    problem = _problem(m, k, "absmax", rows.dtype, str(kind), target_of(rows.device))
    kernel, config, _ = choose(problem)
    derive = getattr(kernel, "launch_deriving", None)
    if derive is None or rows.numel() == 0:
        tensor_scale = derive_tensor_scale(rows, kind.format, per_row=True)
        return *run_quantize(rows, kind, "absmax", tensor_scale, codebook), tensor_scale
    codes, scale = storage(kind, (m, k), rows.device)
    tensor_scale = torch.empty(m, dtype=torch.float32, device=rows.device)
    derive(problem, config, rows[None], tensor_scale[None], codebook, codes[None], scale[None])
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
        target=target_of(operand.device),
    )
    codes = parts.codes.reshape(groups, *parts.codes.shape[len(lead) :])
    scale = parts.scale.reshape(groups, *parts.scale.shape[len(lead) :])
    launch(problem, Parts(codes, scale, row_scale, parts.codebook), out)
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
    for packs, pack in ((packs_cpu_tiles, pack_cpu_tiles), (packs_fragments, pack_fragments)):
        if can_skip_dispatcher((codes, scale)) and packs(format, now, target, codes.device):
            *lead, n, k = shape
            flat = [part.reshape(prod(lead), *part.shape[-2:]) for part in (codes, scale)]
            packed = pack(flat[0], flat[1], format, now, (prod(lead), n, k))
            codes, scale = (part.reshape(*lead, *part.shape[1:]) for part in packed)
            return codes, scale
    if target.codes != now.codes:
        codes = target.pack_codes(now.unpack_codes(codes, format, shape), format)
    if target.scales != now.scales:
        scale = target.pack_scale(now.unpack_scale(scale, format, shape), format)
    return codes, scale
