"""Known operands, made on the CPU by the definition alone: no kernel that could be wrong has a part
in them. The same numbers in every run."""

from __future__ import annotations

from functools import lru_cache
from math import frexp
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from blockscale.formats import Format
from blockscale.kernels import Parts
from blockscale.numerics import amax_bits, quantize_rows, scaled_values, tensor_scale_of
from blockscale.problem import Kind

_MOST = 4.0  # of lossless elements, which are multiples of a quarter: sums of thousands are exact
_CPU = torch.device("cpu")


class Coded(NamedTuple):
    """A quantised operand [groups, rows, k]: its bytes, and what they say in float64."""

    parts: Parts  # in the layout of its kind
    values: Tensor  # decode * scale; tensor scales are not in it


def numbers(*shape: int, generator: Generator) -> Tensor:
    """Random float32, rows of different sizes."""
    size = torch.randint(-2, 3, (*shape[:-1], 1), generator=generator, device=_CPU)
    values = torch.randn(*shape, generator=generator, device=_CPU, dtype=torch.float32)
    return values * torch.exp2(size.float())


def integers(*shape: int, most: int, generator: Generator) -> Tensor:
    """float32 from -most to most."""
    return torch.randint(-most, most + 1, shape, generator=generator, device=_CPU).float()


def one_hot(rows: int, k: int) -> Tensor:
    """float32 [rows, k]: a product with it gives the weights back, some columns of them."""
    x = torch.zeros(rows, k, device=_CPU, dtype=torch.float32)
    row = torch.arange(rows, device=_CPU)
    x[row, (37 * row + 11) % k] = 1.0
    return x


def rounded(x: Tensor, kind: Kind, per_row: bool) -> Coded:
    """x [groups, rows, k] quantised, with a tensor scale for each row or each matrix."""
    format, groups = kind.format, len(x)
    tensor_scale = None
    if format.has_tensor_scale:
        amax = amax_bits(x)
        tensor_scale = tensor_scale_of(amax if per_row else amax.amax(-1), format)
    table = _table(format)
    made = [
        quantize_rows(x[group], format, "absmax", _of_rows(tensor_scale, group, x.shape[1]), table)
        for group in range(groups)
    ]
    codes, scale = (torch.stack(parts) for parts in zip(*made, strict=True))
    return _coded(kind, codes, scale, tensor_scale, table)


def lossless(shape: tuple[int, int, int], kind: Kind, per_row: bool, generator: Generator) -> Coded:
    """Random codes of small round numbers, with scales and tensor scales that are powers of two."""
    format, (groups, rows, k) = kind.format, shape
    allowed = torch.tensor(_round_codes(format), dtype=torch.uint8, device=_CPU)
    drawn = torch.randint(len(allowed), shape, generator=generator, device=_CPU)
    doubled = torch.randint(
        2, (groups, rows, k // format.block), generator=generator, device=_CPU
    ).bool()
    one, two = _two_scales(format)
    scale = torch.where(doubled[..., None], two, one).flatten(-2)
    tensor_scale = None
    if format.has_tensor_scale:
        count = (groups, rows) if per_row else (groups,)
        larger = torch.randint(2, count, generator=generator, device=_CPU)
        tensor_scale = 4.0**larger / 2  # never 1, which a kernel might forget
    return _coded(kind, allowed[drawn], scale, tensor_scale, _table(format))


def is_lossless(format: Format) -> bool:
    """Whether there are such codes: tables hold no round numbers."""
    return not format.is_codebook


def _coded(
    kind: Kind, codes: Tensor, scale: Tensor, tensor_scale: Tensor | None, table: Tensor | None
) -> Coded:
    format, layout = kind
    parts = Parts(
        layout.pack_codes(codes, format), layout.pack_scale(scale, format), tensor_scale, table
    )
    values = [scaled_values(*each, format, table) for each in zip(codes, scale, strict=True)]
    return Coded(parts, torch.stack(values))


def _of_rows(tensor_scale: Tensor | None, group: int, rows: int) -> Tensor | None:
    return None if tensor_scale is None else tensor_scale[group].expand(rows)


def _table(format: Format) -> Tensor | None:
    if not format.is_codebook:
        return None
    return torch.tensor(format.codebook, dtype=torch.float32, device=_CPU)


@lru_cache(maxsize=64)
def _round_codes(format: Format) -> list[int]:
    values = enumerate(format.element.values)
    return [code for code, value in values if abs(value) <= _MOST and (4 * value).is_integer()]


def _two_scales(format: Format) -> tuple[Tensor, Tensor]:
    """The bytes of two powers of two, 1 and 2 where the scale element reaches them."""
    if format.scale.bits == 32:
        one, two = torch.tensor([1.0, 2.0], dtype=torch.float32, device=_CPU).view(2, 1)
        return one.view(torch.uint8), two.view(torch.uint8)
    powers = [
        code
        for code, value in enumerate(format.scale.values)
        if 0 < value <= 2 and frexp(value)[0] == 0.5
    ]
    one, two = torch.tensor(powers[-2:], dtype=torch.uint8, device=_CPU).view(2, 1)
    return one, two
