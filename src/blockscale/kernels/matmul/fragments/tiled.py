"""What GEMMs that decode whole tiles of fragments have alike: refusals, and names of a format."""

from __future__ import annotations

from blockscale.formats import Float, Format
from blockscale.kernels.cuda.enums import Element, Scale
from blockscale.kernels.matmul.fragments.groups import rows_each
from blockscale.kernels.matmul.fragments.numbers import PAIRS, scales_weights, unreadable, x_dtype
from blockscale.problem import Problem
from blockscale.runtime.cuda import cuda_refusal

TILE_M = (64, 96, 128, 160, 192, 224, 256)  # rows of x of a tile

# Rows of x of a matrix, on average: with fewer, half a tile would be idle, and the stream kernel
# reads weights as fast as memory gives them.
_FEWEST_ROWS = 33
_FEWEST_OF_GROUP = 4


def why_not_tiled(problem: Problem, unit: str, present: bool) -> str | None:
    """unit     that multiplies, by its name in PTX
    present  whether the problem's device has it"""
    refusal = cuda_refusal(problem.device)
    if refusal is None and not present:
        return f"multiplies by {unit}, which {problem.target} has not"
    refusal = refusal or unreadable(problem)
    if refusal is None and not scales_weights(problem.w_kind.format, x_dtype(problem), TILE_M[0]):
        return f"scales weights in x's dtype, and {x_dtype(problem)} does not hold them exactly"
    return refusal


def too_few_rows(problem: Problem) -> str | None:
    fewest, rows = (_FEWEST_OF_GROUP if problem.ragged else _FEWEST_ROWS), rows_each(problem)
    return f"is for {fewest} rows of a matrix and more, not {rows:.3g}" if rows < fewest else None


def format_defines(format: Format, x: str, out: str, symmetric: bool) -> dict[str, str | int]:
    """By which device code knows operands: decode::WeightFormat, x and the output."""
    element, floats = format.element, isinstance(format.element, Float)
    return {
        "BS_X": PAIRS[x],
        "BS_OUT": out.upper(),
        "BS_ELEMENT": (Element[element.name.upper()] if floats else Element.TABLE).name,
        "BS_SCALE": Scale[format.scale.name.upper()].name,
        "BS_BITS": element.bits,
        "BS_BLOCK": format.block,
        "BS_SYMMETRIC": int(symmetric),
    }
