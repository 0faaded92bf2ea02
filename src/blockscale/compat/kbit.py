"""The names of the k-bit codebook GEMM: 2 to 5 bits, blocks of 32, E4M4 scales, bit planes.

Their tuples have no room for a tensor scale, so data outside E4M4's range is an error here rather
than a silent saturation; `blockscale.quantize` takes any data.
"""
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import CATALOGUE, E4M4, Format, normal_float
from blockscale.runtime import target_of
from blockscale.tensor import QTensor, grouped_matmul, linear, matmul, quantize

_BLOCK = 32


def _format(k: int) -> Format:
    if k not in (2, 3, 4, 5):
        raise ValueError(f"k must be 2, 3, 4 or 5, got {k}")
    return CATALOGUE[f"kbit{k}"]


def create_normal_float_codebook(k: int, device: torch.device | str = "cpu") -> Tensor:
    """2^k mid-quantiles of N(0, 1), scaled to [-1, 1]."""
    return torch.tensor(normal_float(k).values, dtype=torch.float32, device=device)


def quantize_kbit(
    A: Tensor,
    k: int = 4,
    codebook: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """A, flattened, padded to blocks of 32 -> packed int32 [blocks * k], absmax uint8, codebook."""
    format = _format(k)
    if codebook is not None:
        format = format.replace(codebook=codebook.tolist())  # which must have 2^k values
    _check_range(A)
    flat = A.detach().reshape(1, -1)
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[-1] % _BLOCK))
    q = quantize(flat, format, tensor_scale=1.0)
    table = create_normal_float_codebook(k, A.device) if codebook is None else codebook
    return q.codes.view(torch.int32).flatten(), q.scale.flatten(), table


def dequantize_kbit(
    packed: Tensor,
    absmax: Tensor,
    codebook: Tensor,
    k: int,
    n: int,
    dtype: torch.dtype = torch.float16,
) -> Tensor:
    """The first n values, flat."""
    if not 0 <= n <= absmax.numel() * _BLOCK:
        raise ValueError(f"n must be 0 to {absmax.numel() * _BLOCK}, the values packed, got {n}")
    q = _weight(packed, absmax, codebook, absmax.numel() * _BLOCK, 1, k)
    return q.dequantize(dtype).flatten()[:n]


def repack_for_gemm(
    packed: Tensor,
    absmax: Tensor,
    K_dim: int,
    N: int,
    k: int,
) -> tuple[Tensor, Tensor]:
    """Packed bytes of a weight [N, K_dim] in the layout that this device's kernels read."""
    table = create_normal_float_codebook(k, packed.device)
    q = _weight(packed, absmax, table, K_dim, N, k).prepare()
    return q.codes, q.scale


def kbit_gemm(
    A: Tensor,
    packed_tiled: Tensor,
    absmax_tiled: Tensor,
    codebook: Tensor,
    K_dim: int,
    N: int,
    k: int,
) -> Tensor:
    """A [..., K_dim] @ W.T, with the two outputs of `repack_for_gemm`."""
    return matmul(A, _prepared(packed_tiled, absmax_tiled, codebook, K_dim, N, k))


def kbit_grouped_gemm(
    A_list: Sequence[Tensor],
    B_packed_list: Sequence[Tensor],
    absmax_list: Sequence[Tensor],
    codebook: Tensor,
    K_dim: int,
    N: int,
    k: int,
) -> list[Tensor]:
    """One launch for all experts: A_list[i] [m_i, K_dim] times expert i."""
    if not len(A_list) == len(B_packed_list) == len(absmax_list):
        raise ValueError(
            f"one entry per expert: got {len(A_list)} activations, {len(B_packed_list)} weights "
            f"and {len(absmax_list)} absmax"
        )
    experts = _prepared(
        torch.stack(list(B_packed_list)), torch.stack(list(absmax_list)), codebook, K_dim, N, k
    )
    sizes = [len(rows) for rows in A_list]
    group_sizes = torch.tensor(sizes, dtype=torch.int32, device=codebook.device)
    y = grouped_matmul(torch.cat(list(A_list)), experts, group_sizes)
    return list(y.split(sizes))


class LinearNbit(torch.nn.Module):
    """A linear layer with k-bit weights: `LinearNbit.from_linear(layer, k=4)`.

    The bytes are buffers, so they are in the state dict; casting the module to another dtype leaves
    them as they are.
    """

    codes: Tensor
    scale: Tensor
    tensor_scale: Tensor
    codebook: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, k: int = 4) -> None:
        super().__init__()
        q = quantize(weight, _format(k), scale="mse")
        self.format, self.out_features, self.in_features = q.format, *weight.shape
        for name in ("codes", "scale", "tensor_scale", "codebook"):
            self.register_buffer(name, getattr(q, name))
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach().clone())

    @classmethod
    def from_linear(cls, layer: torch.nn.Linear, *, k: int = 4) -> LinearNbit:
        return cls(layer.weight, layer.bias, k=k)

    @property
    def weight(self) -> QTensor:
        return QTensor.from_storage(
            self.format,
            self.codes,
            self.scale,
            tensor_scale=self.tensor_scale,
            codebook=self.codebook,
        )

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return linear(x, self.weight, bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        exact = {name: getattr(self, name) for name in ("tensor_scale", "codebook")}
        super()._apply(fn, recurse)
        for name, value in exact.items():  # moved like the others, but never cast
            moved = getattr(self, name).to(torch.float32)
            setattr(self, name, moved if value.is_meta else value.to(moved.device))
        return self

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.format}"


def _weight(
    packed: Tensor,
    absmax: Tensor,
    codebook: Tensor,
    K_dim: int,
    N: int,
    k: int,
) -> QTensor:
    if K_dim % _BLOCK:
        raise ValueError(f"K_dim must be divisible by {_BLOCK}, got {K_dim}")
    if packed.dtype != torch.int32 or packed.numel() != N * K_dim // _BLOCK * k:
        raise ValueError(
            f"packed must be int32 with {N * K_dim // _BLOCK * k} words for N={N}, K_dim={K_dim}, "
            f"k={k}, got {packed.dtype} with {packed.numel()}"
        )
    return _with_table(k, packed.reshape(N, -1).view(torch.uint8), absmax.reshape(N, -1), codebook)


def _prepared(
    codes: Tensor,
    scale: Tensor,
    codebook: Tensor,
    K_dim: int,
    N: int,
    k: int,
) -> QTensor:
    """What `repack_for_gemm` has laid out, with experts in front or not."""
    format, shape = _format(k), (*codes.shape[:-2], N, K_dim)
    layout = ops.prepared_layout(format, target_of(codes.device))
    expected = layout.code_storage_shape(format, shape)
    if tuple(codes.shape) != expected:
        raise ValueError(
            f"the packed weight is {list(codes.shape)}, but N={N}, K_dim={K_dim}, k={k} need "
            f"{list(expected)}"
        )
    one = torch.ones(shape[:-2], dtype=torch.float32, device=codes.device)
    return QTensor(format, shape, codes, scale, one, codebook.to(torch.float32), layout)


def _with_table(k: int, codes: Tensor, scale: Tensor, codebook: Tensor) -> QTensor:
    return QTensor.from_storage(_format(k), codes, scale, codebook=codebook.to(torch.float32))


def _check_range(x: Tensor) -> None:
    largest = float(x.detach().abs().max()) if x.numel() else 0.0
    if largest > E4M4.max or 0 < largest < E4M4.smallest_normal:
        raise ValueError(
            f"amax {largest:g} is outside E4M4's [{E4M4.smallest_normal:g}, {E4M4.max:g}]: use "
            "blockscale.quantize, whose tensors carry a tensor scale"
        )
