"""Which pairs of formats the block-scaled tensor cores of Blackwell multiply, and in which words.

Three kinds of instruction take all of them:

    MXF8F6F4   elements of 4, 6 or 8 bits, mixed, each in a slot of one byte; e8m0 scales of 32
    MXF4       e2m1 twice, packed; e8m0 scales of 32
    MXF4NVF4   e2m1 twice, packed; ue4m3 scales of 16

Packed elements run at twice the rate of slots.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockscale.formats import Float, Format
from blockscale.layouts import Layout
from blockscale.problem import Problem

LAYOUT = Layout("bits", "blocked")
X_LAYOUTS = (LAYOUT, Layout("bits", "rows"))  # the second is blocked at each call
_ELEMENTS = ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2")


@dataclass(frozen=True)
class Operands:
    """x and w of a product.

    kind            of the instruction
    x_bits, w_bits  of an element in memory
    """

    kind: str
    x: str  # the name of the element
    w: str
    x_bits: int
    w_bits: int

    @property
    def is_packed(self) -> bool:
        """Two elements to a byte of shared memory."""
        return self.kind != "MXF8F6F4"

    @property
    def mma_k(self) -> int:
        """Of one instruction: 32 bytes of shared memory."""
        return 64 if self.is_packed else 32

    @property
    def block(self) -> int:
        return 16 if self.kind == "MXF4NVF4" else 32

    @property
    def panel_k(self) -> int:
        """Of 128 bytes of shared memory."""
        return 4 * self.mma_k

    @property
    def k_multiple(self) -> int:
        """What k must be a multiple of: an instruction reads no scales beyond k, since the padding
        of blocked scales may hold anything; TMA unpacks 128 elements at a time."""
        return 128 if self.unpacks(self.x_bits) or self.unpacks(self.w_bits) else self.mma_k

    def unpacks(self, bits: int) -> bool:
        """Whether elements of so many bits are spread to bytes on their way to shared memory."""
        return not self.is_packed and bits < 8

    def panel_bytes(self, bits: int) -> int:
        """In memory, of a row of a panel."""
        return self.panel_k * bits // 8

    @property
    def rate(self) -> int:
        """Of that of 16-bit products."""
        return 4 if self.is_packed else 2


def operands_of(x: Format, w: Format) -> Operands | str:
    """Or why no instruction takes them."""
    for name, format in (("x", x), ("w", w)):
        if not isinstance(format.element, Float) or format.element.name not in _ELEMENTS:
            return f"multiplies floats of 4, 6 and 8 bits; {name} is {format.spec}"
        if (format.scale.name, format.block) not in (("e8m0", 32), ("ue4m3", 16)):
            return f"takes e8m0 scales of 32 or ue4m3 scales of 16; {name} is {format.spec}"
    if (x.scale, x.block) != (w.scale, w.block):
        return f"takes operands with scales of one kind, not {x.spec} and {w.spec}"
    names = x.element.name, w.element.name
    bits = x.element.bits, w.element.bits
    if x.scale.name == "ue4m3":
        if names != ("e2m1", "e2m1"):
            return f"takes ue4m3 scales with e2m1 alone, not {x.spec} and {w.spec}"
        return Operands("MXF4NVF4", *names, *bits)
    return Operands("MXF4" if names == ("e2m1", "e2m1") else "MXF8F6F4", *names, *bits)


def unreadable(problem: Problem) -> str | None:
    """Why the operands are none that a block-scaled kernel reads, or None."""
    if "@" not in problem.x:
        return f"multiplies quantised x, and x is {problem.x}: give x_format"
    if problem.w_kind.layout != LAYOUT:
        wanted = "w.prepare(x_format=...) once"
        return f"reads {LAYOUT}, and w is in {problem.w_kind.layout}: {wanted}"
    if problem.x_kind.layout not in X_LAYOUTS:
        return f"reads {LAYOUT}, and x is in {problem.x_kind.layout}"
    found = operands_of(problem.x_kind.format, problem.w_kind.format)
    if isinstance(found, str):
        return found
    if problem.k % found.k_multiple:
        return f"takes k in multiples of {found.k_multiple}, not {problem.k}"
    if problem.rows >= 2**31 or problem.groups * problem.n >= 2**31:
        return (
            f"counts rows in 32 bits, and there are {max(problem.rows, problem.groups * problem.n)}"
        )
    return None


def operands(problem: Problem) -> Operands:
    """Of a problem that is not `unreadable`."""
    found = operands_of(problem.x_kind.format, problem.w_kind.format)
    if isinstance(found, str):
        raise ValueError(found)
    return found
