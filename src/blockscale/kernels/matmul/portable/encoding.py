"""What the Triton code knows about a format and about a launch when it is compiled.

A Format is data, and so is this: numbers out of its element, scale and layout. No format is asked
for by name, and a new small float needs no new code.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ldexp

from blockscale.formats import Float, Format
from blockscale.problem import Kind

_FLOAT32_BIAS = 127
_LEAST_BLOCK = 16  # columns of the shortest product, which may be one block


@dataclass(frozen=True)
class SmallFloat:
    """How codes of a float become float32; see device/decode.py."""

    exponent: int
    mantissa: int
    signed: bool
    rebias: float  # what a number with the same bits in float32 is multiplied by
    least: float  # what code 0 means, where that is not zero
    infinity: int  # the magnitude of infinity, or -1
    first_nan: int  # the least magnitude that is NaN (of unsigned floats: the least code), or -1

    @classmethod
    def of(cls, element: Float) -> SmallFloat:
        everything = (1 << element.magnitude_bits) - 1
        unused = not element.signed and element.magnitude_bits < element.bits
        first_nan = {
            "none": everything + 1 if unused else -1,
            "nan": everything,
            "ieee": element.max_code + 2,
        }[element.specials]
        return cls(
            exponent=element.exponent,
            mantissa=element.mantissa,
            signed=element.signed,
            rebias=ldexp(1.0, _FLOAT32_BIAS - element.bias),
            least=0.0 if element.zero else element.smallest,
            infinity=element.max_code + 1 if element.specials == "ieee" else -1,
            first_nan=first_nan,
        )


@dataclass(frozen=True)
class Encoding:
    """An operand in rows of codes."""

    bits: int
    planes: bool
    element: SmallFloat | None  # None: a codebook, whose table comes with the tensor
    name: str  # of the element
    block: int
    scale: SmallFloat | None  # None: float32
    blocked: bool  # scales in atoms of 128 x 4

    @classmethod
    def of(cls, kind: Kind) -> Encoding:
        format, layout = kind
        element, scale = format.element, format.scale
        return cls(
            bits=element.bits,
            planes=layout.codes == "planes" and element.bits < 8,
            element=SmallFloat.of(element) if isinstance(element, Float) else None,
            name=element.name,
            block=format.block,
            scale=SmallFloat.of(scale) if scale.bits == 8 else None,
            blocked=layout.scales == "blocked",
        )


@dataclass(frozen=True)
class Variant:
    """All that one compiled kernel is fixed to, beside which optional tensors there are."""

    w: Encoding
    x: Encoding | None  # None: plain numbers
    tile_m: int
    tile_n: int
    tile_k: int
    splits: int
    multiplied: str  # the dtype
    scales_sums: bool  # of blocks, and not each weight
    native: bool  # tensor cores take codes and block scales
    gated: bool
    activation: str
    group_slots: int  # a power of two above the number of ragged groups; 0: rows are not ragged


def unreadable(kind: Kind, most_block: int) -> str | None:
    """Why rows of this kind cannot be decoded, or None."""
    format, layout = kind
    bits = format.element.bits
    widths = {"planes": (2, 3, 4, 5, 8), "bits": (4, 6, 8)}.get(layout.codes)
    if widths is None or layout.scales not in ("rows", "blocked"):
        return f"reads rows as files hold them, not {layout}"
    if bits not in widths:
        return f"reads codes of {', '.join(map(str, widths))} bits in {layout.codes}, not {bits}"
    if not _LEAST_BLOCK <= format.block <= most_block:
        return f"reads blocks of {_LEAST_BLOCK} to {most_block}, not {format.block}"
    return None


# Elements that Triton's product of scaled operands knows by the same names.
_SCALED_ELEMENTS = ("e2m1", "e4m3", "e5m2")


def multiplies_codes(w: Format, x: Format) -> bool:
    """Whether `tl.dot_scaled` takes both operands as they are: NVFP4 with NVFP4, and MXFP4 and
    MXFP8 with each other."""
    pairs = {(each.block, each.scale.name) for each in (w, x)}
    if pairs == {(32, "e8m0")}:
        return w.element.name in _SCALED_ELEMENTS and x.element.name in _SCALED_ELEMENTS
    return pairs == {(16, "ue4m3")} and w.element.name == x.element.name == "e2m1"
