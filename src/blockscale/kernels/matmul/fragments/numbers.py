"""Which dtype is multiplied, and where weights times their scales are exact in it."""

from __future__ import annotations

from blockscale.formats import E2M1, UE4M3, Float, Format
from blockscale.kernels.cuda.formats import fits_bfloat16
from blockscale.kernels.cuda.layout import fragments
from blockscale.problem import Kind, Problem

PAIRS = {"bfloat16": "BFloat16x2", "float16": "Float16x2"}  # of x, two to a register
_FEWEST_ROWS, _FEWEST_ROWS_OF_E2M1 = 16, 8  # of x, from which on scaling each weight pays


def x_dtype(problem: Problem) -> str:
    """Of what is multiplied: quantised rows are decoded to bfloat16."""
    return "bfloat16" if "@" in problem.x else problem.x


def scales_weights(format: Format, x: str, tile_m: int) -> bool:
    """Whether weights are multiplied by their scales, and not the sums of blocks.

    Where rows of x are many and bfloat16 has room for the product of weight and scale, or a table
    is rounded to it anyway. E2M1, whose scales make up for its exponent, needs fewer; NVFP4 fits
    float16 too. Infinities of E5M2 would meet scales that bfloat16 rounds to zero.
    """
    element, scale = format.element, format.scale
    if (element, scale, format.block) == (E2M1, UE4M3, 16):
        return tile_m >= _FEWEST_ROWS_OF_E2M1
    infinite = isinstance(element, Float) and element.specials == "ieee"
    fits = format.is_codebook or (fits_bfloat16(format) and not infinite)
    fewest = _FEWEST_ROWS_OF_E2M1 if element == E2M1 else _FEWEST_ROWS
    return tile_m >= fewest and x == "bfloat16" and fits


def unreadable(problem: Problem) -> str | None:
    """Why the operands are none that a kernel of fragments reads, or None."""
    format, layout = problem.w_kind
    wanted = fragments(format)
    if wanted is None:
        return f"knows no {format.spec}"
    if layout != wanted:
        return f"reads {wanted}, and w is in {layout}: w.prepare() once"
    if "@" not in problem.x and problem.x not in PAIRS:
        return f"takes x in bfloat16 or float16, not {problem.x}"
    if "@" in problem.x and not _is_exact_in_bfloat16(problem.x_kind):
        return f"takes x as bfloat16, which {problem.x_kind} would be rounded to"
    return None


def _is_exact_in_bfloat16(kind: Kind) -> bool:
    """As scaled values of NVFP4 and of the MX formats are."""
    return kind.layout.scales == "rows" and fits_bfloat16(kind.format)
