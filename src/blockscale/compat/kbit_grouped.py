"""`kbit_grouped_gemm`: the products of all experts in one launch.

Weights come stacked in one tensor, one after the other in one tensor, or as a list; activations as
a list, or as one tensor with the offset of each expert's rows. A stack is read in place, and so is
a list of its parts. Experts that lie apart are copied into one tensor at the first call, which is
held for the next: see `held`.
"""
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from blockscale.compat.held import HeldWeights
from blockscale.compat.kbit import kbit_format, prepared_layout, prepared_weight
from blockscale.runtime import checks_enabled
from blockscale.tensor import QTensor, grouped_matmul

_held = HeldWeights()
Experts = Tensor | Sequence[Tensor]


@overload
def kbit_grouped_gemm(
    A_list: Tensor,
    B_packed_list: Experts,
    absmax_list: Experts,
    codebook: Tensor,
    K_dim: int,
    N: int,
    k: int,
    expert_offsets: Tensor | Sequence[int],
) -> Tensor: ...
@overload
def kbit_grouped_gemm(
    A_list: Sequence[Tensor],
    B_packed_list: Experts,
    absmax_list: Experts,
    codebook: Tensor,
    K_dim: int,
    N: int,
    k: int,
    expert_offsets: None = None,
) -> list[Tensor]: ...
def kbit_grouped_gemm(
    A_list: Experts,
    B_packed_list: Experts,
    absmax_list: Experts,
    codebook: Tensor,
    K_dim: int,
    N: int,
    k: int,
    expert_offsets: Tensor | Sequence[int] | None = None,
) -> list[Tensor] | Tensor:
    """The rows of each expert times its weight [N, K_dim], in one launch.

    A_list          a list of [m_i, K_dim], which gives a list; or one tensor [m, K_dim] with the
                    rows of expert i at expert_offsets[i] : expert_offsets[i + 1], which gives one
    B_packed_list   the two outputs of `repack_for_gemm`, each a list of one tensor to an expert, or
    absmax_list     one tensor in which they are stacked or concatenated along the first dimension
    expert_offsets  int32 or int64 [experts + 1], ascending from 0; rows past the last come out as
                    zeros. Those on a GPU are not looked at unless BLOCKSCALE_CHECK=1
    """
    experts = _experts(B_packed_list, absmax_list, codebook, K_dim, N, k)
    if isinstance(A_list, Tensor):
        sizes = _sizes(expert_offsets, len(experts), A_list)
        return grouped_matmul(A_list, experts, sizes)
    if expert_offsets is not None:
        raise ValueError("expert_offsets are for activations in one tensor, and A_list is a list")
    if len(A_list) != len(experts):
        raise ValueError(
            f"one entry per expert: got {len(A_list)} activations and {len(experts)} weights"
        )
    rows = [len(each) for each in A_list]
    group_sizes = torch.tensor(rows, dtype=torch.int32, device=codebook.device)
    y = grouped_matmul(torch.cat(list(A_list)), experts, group_sizes)
    return list(y.split(rows))


def _experts(
    packed: Experts, absmax: Experts, codebook: Tensor, K_dim: int, N: int, k: int
) -> QTensor:
    codes = (packed,) if isinstance(packed, Tensor) else tuple(packed)
    scales = (absmax,) if isinstance(absmax, Tensor) else tuple(absmax)
    in_one = isinstance(packed, Tensor), isinstance(absmax, Tensor)
    if not codes or (not any(in_one) and len(codes) != len(scales)):
        raise ValueError(f"one entry per expert: got {len(codes)} weights and {len(scales)} absmax")

    def make(parts: list[Tensor]) -> QTensor:
        *parts, table = parts
        apart = parts[: len(codes)], parts[len(codes) :]
        format, layout, shape = kbit_format(k), prepared_layout(k, codes[0].device), (N, K_dim)
        wanted = layout.code_storage_shape(format, shape), layout.scale_storage_shape(format, shape)
        stacked, scale = (
            _unfold(part[0], one) if whole else _stack(part)
            for part, one, whole in zip(apart, wanted, in_one, strict=True)
        )
        return prepared_weight(stacked, scale, table, K_dim, N, k)

    return _held.find(codes, (*scales, codebook), (K_dim, N, k, *in_one), make)


def _unfold(whole: Tensor, one: tuple[int, ...]) -> Tensor:
    """Experts in one tensor as [experts, *one]; what fits neither way is left to be refused."""
    if whole.shape[1:] == one[1:] and whole.shape[0] % one[0] == 0:
        return whole.view(-1, *one)
    return whole


def _stack(parts: list[Tensor]) -> Tensor:
    """In place where they follow each other in memory, else a copy."""
    first = parts[0]
    step = first.numel()
    in_a_row = all(
        part.shape == first.shape
        and part.is_contiguous()
        and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and part.storage_offset() == first.storage_offset() + i * step
        for i, part in enumerate(parts)
    )
    if not in_a_row:
        return torch.stack(parts)
    return first.as_strided((len(parts), *first.shape), (step, *first.stride()))


def _sizes(offsets: Tensor | Sequence[int] | None, experts: int, x: Tensor) -> Tensor:
    """How many rows each expert has."""
    if offsets is None:
        raise ValueError("activations in one tensor need expert_offsets, one more than experts")
    given = torch.as_tensor(offsets)
    if given.dtype not in (torch.int32, torch.int64) or tuple(given.shape) != (experts + 1,):
        raise ValueError(
            f"expert_offsets must be int32 or int64 [{experts + 1}], one more than there are "
            f"experts, got {given.dtype} {list(given.shape)}"
        )
    if given.device.type == "cpu" or checks_enabled():
        values = given.tolist()
        if values[0] != 0 or values != sorted(values) or values[-1] > len(x):
            raise ValueError(
                f"expert_offsets must ascend from 0 to at most the {len(x)} rows of A, got {values}"
            )
    return given.to(x.device).diff()
