"""Making quantised tensors: `quantize` and `fit_codebook`."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import CATALOGUE, Format
from blockscale.formats import format as find_format
from blockscale.layouts import canonical
from blockscale.numerics import check_rule, fit_levels, is_finite_bits, magnitude_bits
from blockscale.tensor.qtensor import QTensor, quantize_values


def quantize(
    x: Tensor,
    format: Format | str,
    *,
    scale: str = "absmax",
    tensor_scale: float | Tensor | str | None = None,
    importance: Tensor | None = None,
    check: bool = False,
) -> QTensor:
    """x [..., n, k] in a block-scaled format.

    scale         how block scales are chosen: "absmax"; "floor", "rceil", "even", "even1" for
                  power-of-two scales; "four_over_six"; "mse", a search for the least squared error
    tensor_scale  None: derived, one per matrix. "row": derived, one per row. A number, or a tensor
                  shaped like the leading dimensions or like the rows: used as it is
    importance    for "mse": what a squared error costs in each column, [k] or [..., k]; such as the
                  mean square of the inputs that meet it. Blocks where it is zero throughout or not
                  finite have plain squared errors
    check         raise on NaN and Inf. Otherwise a block with one decodes to NaN; codebook formats
                  have no NaN, there it counts as 0 and Inf saturates
    """
    format = find_format(format)
    if not isinstance(x, Tensor):
        raise TypeError(f"quantize: x must be a Tensor, got {type(x).__name__}")
    ops.check_float("quantize", "x", x)
    if x.dim() < 2:
        raise ValueError(
            f"quantize: x must be [..., n, k], got shape {tuple(x.shape)}: for a vector use x[None]"
        )
    ops.check_block("quantize", "x", x.shape[-1], format)
    check_rule(scale, format)
    canonical(format).check(format, tuple(x.shape))
    if check:
        _check_finite(x)
    given = _given_tensor_scale(x, format, tensor_scale)
    per_row = isinstance(tensor_scale, str)
    weights = None if importance is None else _given_importance(x, importance, scale)
    return quantize_values(x.detach(), format, scale, given, per_row, weights)


def fit_codebook(samples: Tensor, k: int, *, block: int = 32) -> Format:
    """A k-bit format whose codebook fits the samples: Lloyd-Max on the block-normalised values.

    samples: [..., multiple of block], such as the weight that is to be quantised.
    """
    base = CATALOGUE.get(f"kbit{k}")
    if base is None:
        raise ValueError(f"fit_codebook: k must be 2, 3, 4 or 5, got {k}")
    if not isinstance(samples, Tensor) or samples.dim() < 1:
        raise TypeError("fit_codebook: samples must be a Tensor of at least one dimension")
    ops.check_float("fit_codebook", "samples", samples)
    base = base.replace(block=block)
    ops.check_block("fit_codebook", "samples", samples.shape[-1], base)
    return base.replace(name=f"kbit{k}-fitted", element=fit_levels(samples.detach(), k, block))


def _given_tensor_scale(
    x: Tensor, format: Format, tensor_scale: float | Tensor | str | None
) -> Tensor | None:
    """What the caller fixed, as float32 [leading] or [rows]; None where it is to be derived."""
    if tensor_scale is None:
        return None
    if not format.has_tensor_scale:
        raise ValueError(f"quantize: {format} has no tensor scale: leave tensor_scale out")
    if isinstance(tensor_scale, str):
        if tensor_scale != "row":
            raise ValueError(
                f"quantize: tensor_scale must be a number, a tensor or 'row', got {tensor_scale!r}"
            )
        return None
    given = torch.as_tensor(tensor_scale, dtype=torch.float32, device=x.device).detach()
    per_matrix, per_row = tuple(x.shape[:-2]), tuple(x.shape[:-1])
    if given.dim() == 0:
        given = given.expand(per_matrix)
    if tuple(given.shape) not in (per_matrix, per_row):
        raise ValueError(
            f"quantize: tensor_scale must be one number, one per matrix {list(per_matrix)} or one "
            f"per row {list(per_row)}, got shape {list(given.shape)}"
        )
    ops.check_positive("quantize", "tensor_scale", given)
    return given


def _given_importance(x: Tensor, importance: Tensor, scale: str) -> Tensor:
    """As float32 [k] or [leading, k] on x's device."""
    if scale != "mse":
        raise ValueError(
            f"quantize: importance weighs the errors that scale='mse' searches, and scale is "
            f"{scale!r}: leave one of them out"
        )
    given = torch.as_tensor(importance).detach().to(device=x.device, dtype=torch.float32)
    shared, own = [x.shape[-1]], [*x.shape[:-2], x.shape[-1]]
    if list(given.shape) not in (shared, own):
        wanted = f"{shared}" if shared == own else f"{shared} or {own}"
        raise ValueError(
            f"quantize: importance must be {wanted} for x {list(x.shape)}, got {list(given.shape)}"
        )
    ops.check_not_negative("quantize", "importance", given)
    return given


def _check_finite(x: Tensor) -> None:
    bad = ~is_finite_bits(magnitude_bits(x))
    count = int(bad.sum())
    if count:
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise ValueError(
            f"quantize: x has {count} NaN or Inf of {x.numel()} values, the first at {first}: "
            "clean it, or pass check=False to let those blocks decode to NaN"
        )
