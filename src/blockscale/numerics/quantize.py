"""The definition of quantisation, on a matrix of rows that each know their tensor scale.

    divisor = fp32(scale * tensor_scale)
    code    = nearest(fp32(x / divisor))

All of it is carried in float64 (see `exact`); the roundings to float32 are the ones written.

The rule "mse" takes the scale whose block has the least

    sum over i of fp64(importance[i] * fp64(error[i]^2))      error = x - dequantised, in fp64

with sums of neighbours first, then neighbours of those sums. Importance is a number for each column
of x. Blocks where it is zero throughout, or anywhere negative or not finite, have plain squared
errors, as if all of it were one; so has a call without importance.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.formats import Format
from blockscale.numerics.dequantize import block_values
from blockscale.numerics.elements import decode, encode, encode_float32
from blockscale.numerics.exact import (
    cast,
    float32_bits,
    is_finite_bits,
    is_nan_bits,
    magnitude_bits,
    round_to,
    widen,
    widen_bits,
)
from blockscale.numerics.scales import block_scale, choose_tensor_scale


class Quantized(NamedTuple):
    codes: Tensor  # uint8 [rows, k], one code per byte
    scale: Tensor  # uint8 [rows, k / block * bytes of a scale]


def rules_of(format: Format) -> list[str]:
    """The scale rules that apply to a format, "absmax" first."""
    rules = ["absmax"]
    if format.scale.power_of_two:
        rules += ["floor", "rceil"] if format.is_codebook else ["floor", "rceil", "even", "even1"]
    elif format.element.name == "e2m1":
        rules.append("four_over_six")
    if format.scale.bits != 32:  # float32 scales have no neighbours to speak of
        rules.append("mse")
    return rules


def check_rule(rule: str, format: Format) -> None:
    if rule not in rules_of(format):
        raise ValueError(
            f"scale={rule!r} does not apply to {format}: use one of {', '.join(rules_of(format))}"
        )


def amax_bits(x: Tensor) -> Tensor:
    """Bits of the largest finite magnitude of each row of x [..., k]; maxima of bits are maxima."""
    bits = magnitude_bits(x)
    return torch.where(is_finite_bits(bits), bits, 0).amax(-1)


def tensor_scale_of(amax: Tensor, format: Format) -> Tensor:
    """float32 tensor scales from the bits of amax."""
    return cast(choose_tensor_scale(widen_bits(amax), format), torch.float32)


def quantize_rows(
    x: Tensor,  # [rows, k] float32, bfloat16 or float16
    format: Format,
    rule: str,
    tensor_scale: Tensor | None,  # float32 [rows]; None where the format has none
    codebook: Tensor | None = None,  # float32 [2^bits]
    importance: Tensor | None = None,  # float32 [k], for the rule "mse"
) -> Quantized:
    bits = float32_bits(x).unflatten(-1, (-1, format.block))  # [rows, blocks, block]
    if format.scale.nan_code is None:
        bits = torch.where(is_nan_bits(bits & 0x7FFFFFFF), 0, bits)  # Inf stays, and saturates
    amax_bits = (bits & 0x7FFFFFFF).amax(-1)  # [rows, blocks]
    finite = is_finite_bits(amax_bits) | (format.scale.nan_code is None)
    blocks = widen_bits(torch.where(finite[..., None], bits, 0))
    amax = widen_bits(torch.where(finite, amax_bits, 0))

    per_row = torch.ones_like(amax[:, :1]) if tensor_scale is None else widen(tensor_scale)[:, None]
    weight = None if importance is None else _block_weights(importance, format.block)
    block = _Block(format, blocks, per_row, codebook, weight)
    chosen = block_scale(amax, format, per_row, "absmax" if rule in _SEARCHES else rule)
    if rule in _SEARCHES:
        chosen = _SEARCHES[rule](block, chosen, amax)
    codes = block.codes(block.scale_value(chosen))

    if format.scale.bits == 32:
        return Quantized(codes.flatten(-2), encode_float32(torch.where(finite, chosen, torch.nan)))
    if format.scale.nan_code is not None:
        chosen = torch.where(finite, chosen, format.scale.nan_code).to(torch.uint8)
    return Quantized(codes.flatten(-2), chosen)


def _block_weights(importance: Tensor, block: int) -> Tensor:
    """float64 [blocks, block]: ones in blocks that plain squared errors are better for."""
    weight = widen(importance).unflatten(-1, (-1, block))
    usable = ((weight >= 0) & (weight < torch.inf)).all(-1) & (weight > 0).any(-1)
    return torch.where(usable[:, None], weight, 1.0)


class _Block(NamedTuple):
    """Blocks of numbers waiting for a scale."""

    format: Format
    values: Tensor  # float64 [rows, blocks, block], finite or saturating
    tensor_scale: Tensor  # float64 [rows, 1]
    codebook: Tensor | None
    weight: Tensor | None  # float64 [blocks, block], of squared errors

    def scale_value(self, chosen: Tensor) -> Tensor:
        return chosen if self.format.scale.bits == 32 else decode(chosen, self.format.scale)

    def codes(self, scale: Tensor) -> Tensor:
        """Nearest codes under float64 scales [rows, blocks]."""
        divisor = round_to(scale * self.tensor_scale)[..., None]
        # A block whose divisor is zero decodes to zeros whatever its codes: they encode zero.
        quotient = torch.where(divisor == 0, 0.0 * self.values, round_to(self.values / divisor))
        quotient = torch.where(self.values.isinf(), self.values, quotient)  # whatever the divisor
        return encode(quotient, self.format.element, self.codebook)

    def squared_error(self, chosen: Tensor) -> Tensor:
        """Of the dequantised block, float64 [rows, blocks]; neighbours are summed first."""
        scale = self.scale_value(chosen)
        values = decode(self.codes(scale), self.format.element, self.codebook)
        error = self.values - block_values(values, scale[..., None], self.tensor_scale[..., None])
        total = error * error
        if self.weight is not None:
            total = self.weight * total
        while total.shape[-1] > 1:
            total = total[..., 0::2] + total[..., 1::2]
        return total[..., 0]


def _best(block: _Block, candidates: list[Tensor]) -> Tensor:
    """The candidate with the least squared error in each block; the earlier one on a tie."""
    best, least = candidates[0], block.squared_error(candidates[0])
    for candidate in candidates[1:]:
        error = block.squared_error(candidate)
        better = error < least
        best = torch.where(better, candidate, best)
        least = torch.where(better, error, least)
    return best


def _search_neighbours(block: _Block, start: Tensor, amax: Tensor) -> Tensor:
    """Scale codes up to a binade from the absmax one: 1, 8 or 16 to each side.

    Beyond a factor of two nothing is gained, and 2-bit codebooks use most of it.
    """
    scale = block.format.scale
    reach = 1 << scale.mantissa
    lowest = 0 if scale.power_of_two else 1
    code = start.to(torch.int64)
    candidates = [start]
    for distance in range(1, reach + 1):
        for step in (-distance, distance):
            moved = (code + step).clamp(lowest, scale.max_code).to(torch.uint8)
            candidates.append(torch.where(amax > 0, moved, start))
    return _best(block, candidates)


def _search_four_over_six(block: _Block, start: Tensor, amax: Tensor) -> Tensor:
    """Map the amax to 6 or to 4, E2M1's two largest values, whichever costs less."""
    to_four = block_scale(amax * 1.5, block.format, block.tensor_scale, "absmax")
    return _best(block, [start, to_four])


_SEARCHES = {"mse": _search_neighbours, "four_over_six": _search_four_over_six}
