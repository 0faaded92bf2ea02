"""What the codes of a tensor mean: the `Format` record.

    x[..., r, c] = decode(code[..., r, c]) * scale[..., r, c // block] * tensor_scale[...]

A Format is data. Adding one is a line in the catalogue; nothing else in the library asks for a
format by name, only for its element, block and scales.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, cast

from blockscale.formats.elements import FLOATS, SCALES, TABLES, Codebook, Float, normal_float

TensorScale = Literal["none", "amax", "pow2"]


@dataclass(frozen=True, kw_only=True)
class Format:
    """element, block size, scale element, and how a tensor scale is chosen.

    tensor_scale  "none": the format has none. "amax": the tensor's amax lands on the largest
                  representable product, element.max * scale.max. "pow2": 1, or a power of two when
                  the amax would leave the comfortable range of the scale element.

    Two formats are equal when they mean the same, whatever they are called.
    """

    name: str = field(compare=False)
    element: Float | Codebook
    block: int
    scale: Float
    tensor_scale: TensorScale = "none"
    # The canonical string, for `torch.library`, files and caches; `parse_spec` reads it. It says
    # what a kernel must know. The values of a codebook are not in it: they travel with the tensor.
    spec: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.element, (Float, Codebook)) or not isinstance(self.scale, Float):
            raise TypeError(
                f"{self.name}: element and scale are objects: use NVFP4.replace(element='e4m3') or "
                "formats.parse_element('e4m3')"
            )
        if (
            not isinstance(self.block, int)
            or self.block < 8
            or self.block > 4096
            or self.block & (self.block - 1)
        ):
            raise ValueError(
                f"{self.name}: block must be a power of two from 8 to 4096, got {self.block}"
            )
        if SCALES.get(self.scale.name) != self.scale:
            raise ValueError(
                f"{self.name}: {self.scale.name} is not a scale; use one of {', '.join(SCALES)}"
            )
        if isinstance(self.element, Float) and parse_element(self.element.name) != self.element:
            # Only names cross `torch.library`: another float behind a known name would be lost.
            raise ValueError(
                f"{self.name}: {self.element.name} names {parse_element(self.element.name)}, "
                f"not {self.element}"
            )
        if not 2 <= self.element.bits <= 8:
            raise ValueError(
                f"{self.name}: elements have 2 to 8 bits, {self.element.name} has "
                f"{self.element.bits}"
            )
        if self.tensor_scale not in ("none", "amax", "pow2"):
            raise ValueError(
                f"{self.name}: tensor_scale must be 'none', 'amax' or 'pow2', "
                f"got {self.tensor_scale!r}"
            )
        if self.tensor_scale != "none" and self.scale.max > 2.0**64:
            raise ValueError(
                f"{self.name}: {self.scale.name} scales reach any amax by themselves: "
                "set tensor_scale='none'"
            )
        spec = f"{self.element.name}/{self.block}:{self.scale.name}"
        if self.has_tensor_scale:
            spec += f":{self.tensor_scale}"
        object.__setattr__(self, "spec", spec)

    @property
    def bits_per_value(self) -> float:
        """Storage of codes and block scales; a tensor scale or a codebook is a few bytes more."""
        return self.element.bits + self.scale.bits / self.block

    @property
    def is_codebook(self) -> bool:
        return isinstance(self.element, Codebook)

    @property
    def codebook(self) -> tuple[float, ...]:
        """The table of a codebook element; empty for float elements."""
        return self.element.values if isinstance(self.element, Codebook) else ()

    @property
    def has_tensor_scale(self) -> bool:
        return self.tensor_scale != "none"

    @property
    def roles(self) -> tuple[str, ...]:
        """The tensors that a quantised tensor of this format is stored in, by what they are for:
        "codes" and "scale" always, "tensor_scale" and "codebook" where there are such.
        """
        optional = {"tensor_scale": self.has_tensor_scale, "codebook": self.is_codebook}
        return ("codes", "scale", *(role for role, there in optional.items() if there))

    def replace(
        self,
        *,
        name: str | None = None,
        element: Float | Codebook | str | None = None,
        codebook: Sequence[float] | None = None,
        block: int | None = None,
        scale: Float | str | None = None,
        tensor_scale: TensorScale | None = None,
    ) -> Format:
        """A user's own format: this one with some parts changed.

        `codebook` is a sorted table of 2^k values in [-1, 1]; `element` and `scale` may be names.
        """
        if codebook is not None:
            if element is not None:
                raise ValueError("replace: give either element or codebook, not both")
            bits = max(len(codebook) - 1, 1).bit_length()
            if isinstance(self.element, Codebook):
                bits = self.element.bits  # another number of values is another format
            element = Codebook(bits=bits, values=tuple(map(float, codebook)))
        changed = Format(
            name="",
            element=parse_element(element) if isinstance(element, str) else element or self.element,
            block=self.block if block is None else block,
            scale=parse_scale(scale) if isinstance(scale, str) else scale or self.scale,
            tensor_scale=self.tensor_scale if tensor_scale is None else tensor_scale,
        )
        label = name or (self.name if changed == self else f"{self.name}-custom")
        object.__setattr__(changed, "name", label)
        return changed

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Format({self.name}: {self.spec}, {self.bits_per_value:g} bits/value)"


def parse_element(name: str) -> Float | Codebook:
    """An element by name: e2m1, e4m3, codebook3 (NormalFloat by default), or any small eXmY."""
    if name in FLOATS:
        return FLOATS[name]
    if name in TABLES:
        return TABLES[name]
    if match := re.fullmatch(r"codebook([1-8])", name):
        return normal_float(int(match[1]))
    if match := re.fullmatch(r"e([1-9])m([0-9])", name):
        return Float(name=name, exponent=int(match[1]), mantissa=int(match[2]))
    raise ValueError(
        f"unknown element {name!r}: use one of {', '.join(FLOATS)}, codebook2 to codebook5, or eXmY"
    )


def parse_scale(name: str) -> Float:
    if name not in SCALES:
        raise ValueError(f"unknown scale element {name!r}: use one of {', '.join(SCALES)}")
    return SCALES[name]


@lru_cache(maxsize=256)
def parse_spec(spec: str) -> Format:
    """The inverse of `Format.spec`; a codebook comes back with the default table."""
    match = re.fullmatch(r"(\w+)/(\d+):(\w+)(?::(none|amax|pow2))?", spec)
    if not match:
        raise ValueError(
            f"{spec!r} is not a format spec: expected element/block:scale[:tensor_scale], "
            "such as 'e2m1/16:ue4m3:amax'"
        )
    element, block, scale, tensor_scale = match.groups()
    return Format(
        name=spec,
        element=parse_element(element),
        block=int(block),
        scale=parse_scale(scale),
        tensor_scale=cast(TensorScale, tensor_scale or "none"),
    )
