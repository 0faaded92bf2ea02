"""The names of the k-bit codebook GEMM: 2 to 5 bits, blocks of 32, E4M4 scales, bit planes.

Their tuples have no room for a tensor scale, so data outside E4M4's range is an error here rather
than a silent saturation; `blockscale.quantize` takes any data.

The products take plain tensors and hold the QTensor that is made of them: see `held`.
"""
# ruff: noqa: N803

from __future__ import annotations

import math

import torch
from torch import Tensor

from blockscale import ops
from blockscale.compat.held import HeldWeights
from blockscale.formats import CATALOGUE, E4M4, Format, NormalFloat, normal_float
from blockscale.layouts import Layout
from blockscale.runtime import device_of, resolve_device
from blockscale.tensor import QTensor, matmul, quantize

_BLOCK = 32
_held = HeldWeights()
_tables: dict[tuple[int, torch.device, str], Tensor] = {}


def kbit_format(k: int, codebook: Tensor | None = None) -> Format:
    """KBIT2 to KBIT5, with a table of 2^k values where one is given."""
    if k not in (2, 3, 4, 5):
        raise ValueError(f"k must be 2, 3, 4 or 5, got {k}")
    format = CATALOGUE[f"kbit{k}"]
    return format if codebook is None else format.replace(codebook=codebook.tolist())


def prepared_layout(k: int, device: torch.device) -> Layout:
    """Where `repack_for_gemm` places a weight."""
    return ops.prepared_layout(kbit_format(k), device_of(device))


def create_normal_float_codebook(
    k: int, device: torch.device | str = "cpu", *, method: NormalFloat = "mid_quantiles"
) -> Tensor:
    """2^k levels for N(0, 1), ascending, the largest 1: see `formats.normal_float`.

    The same tensor for the same arguments, while nobody writes to it.
    """
    kbit_format(k)
    place = resolve_device(device)
    table = _tables.get((k, place, method))
    if table is None or table._version:
        values = normal_float(k, method).values
        with torch.inference_mode(mode=False):  # what that makes does not count what is written
            table = torch.tensor(values, dtype=torch.float32, device=place)
        _tables[k, place, method] = table
    return table


def quantize_kbit(
    A: Tensor,
    k: int = 4,
    codebook: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """A, flattened, padded to blocks of 32 -> packed int32 [blocks * k], absmax uint8, codebook."""
    format = kbit_format(k, codebook)
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
    """Packed bytes of a weight [N, K_dim] in the layout that this device's kernels read.

    Weights that are stacked, packed [e, words] with absmax [e, blocks], come back stacked.
    """
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

    def make(parts: list[Tensor]) -> QTensor:
        codes, scale, table = parts
        return prepared_weight(codes, scale, table, K_dim, N, k)

    return matmul(A, _held.find((packed_tiled,), (absmax_tiled, codebook), (K_dim, N, k), make))


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
    words = N * K_dim // _BLOCK * k
    stacked = packed.dim() > 1 and packed.numel() != words and packed.shape[-1] == words
    if packed.dtype != torch.int32 or not (stacked or packed.numel() == words):
        raise ValueError(
            f"packed must be int32 with {words} words for N={N}, K_dim={K_dim}, k={k}, or [e, "
            f"{words}] for e of them, got {packed.dtype} {list(packed.shape)}"
        )
    rows = (*packed.shape[:-1], N, -1) if stacked else (N, -1)
    codes = packed.reshape(rows).view(torch.uint8)
    return QTensor.from_storage(
        kbit_format(k), codes, absmax.reshape(rows), codebook=codebook.to(torch.float32)
    )


def prepared_weight(
    codes: Tensor,
    scale: Tensor,
    codebook: Tensor,
    K_dim: int,
    N: int,
    k: int,
) -> QTensor:
    """Of what `repack_for_gemm` has laid out: one weight, or several that are stacked."""
    format, layout = kbit_format(k), prepared_layout(k, codes.device)
    one = layout.code_storage_shape(format, (N, K_dim))
    lead = tuple(codes.shape[: max(codes.dim() - len(one), 0)])
    if tuple(codes.shape) != (*lead, *one):
        raise ValueError(
            f"the packed weight is {list(codes.shape)}, but N={N}, K_dim={K_dim}, k={k} need "
            f"{list(one)}"
        )
    ones = torch.ones(lead, dtype=torch.float32, device=codes.device)
    table = codebook.to(torch.float32)
    return QTensor(format, (*lead, N, K_dim), codes, scale, ones, table, layout)


def _check_range(x: Tensor) -> None:
    # NaN counts as 0, as everywhere in codebook formats, and hides nothing beside it.
    largest = float(x.detach().abs().nan_to_num(0.0, posinf=math.inf).max()) if x.numel() else 0.0
    if largest > E4M4.max or 0 < largest < E4M4.smallest_normal:
        raise ValueError(
            f"amax {largest:g} is outside E4M4's [{E4M4.smallest_normal:g}, {E4M4.max:g}]: use "
            "blockscale.quantize, whose tensors carry a tensor scale"
        )
