"""How to quantise a model, written as one word: "kbit4", "kbit4+fit", "*.down_proj=kbit5,kbit3"."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockscale.formats import Format
from blockscale.formats import format as find_format
from blockscale.nn import Report, quantize_
from blockscale.nn.importance import RANDOM, Importance
from blockscale.nn.selection import matches

_KEEP = "keep"
_FIT = "+fit"


@dataclass(frozen=True)
class Recipe:
    """Formats by pattern, the first that fits counts, and whether codebooks are fitted."""

    text: str
    formats: Mapping[str, Format | None]
    fit: bool = False

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """FORMAT, or PATTERN=FORMAT parts with commas, FORMAT being "keep" too; "+fit" at the end.

        A part without a pattern is for all layers that no part before it took.
        """
        listed = text.removesuffix(_FIT)
        formats: dict[str, Format | None] = {}
        for part in listed.split(","):
            pattern, _, name = part.rpartition("=")
            if (pattern or "*") in formats:
                raise ValueError(
                    f"{text!r} has two formats for {pattern or '*'!r}, and the first that fits a "
                    "name counts: leave one out"
                )
            formats[pattern or "*"] = None if name == _KEEP else find_format(name)
        return cls(text, formats, fit=listed != text)

    def apply_(
        self,
        model: Any,
        *,
        x_format: Format | str | None = None,
        importance: Importance = RANDOM,
        progress: bool | None = None,
    ) -> Report:
        """Quantise a model in place, block scales searched. The rest is as in `quantize_`. Warns of
        patterns that no layer got its format from."""
        report = quantize_(
            model,
            dict(self.formats),
            x_format=x_format,
            codebook="fit" if self.fit else None,
            importance=importance,
            progress=progress,
        )
        unused = [each for each in report.unused_patterns if not self._keeps(each, model)]
        if unused:
            listed = ", ".join(map(repr, unused))
            warnings.warn(f"{self.text}: no layer got its format from {listed}", stacklevel=2)
        return report

    def _keeps(self, pattern: str, model: Any) -> bool:
        """Whether it is there to keep a layer, as is done with some layers anyway."""
        return self.formats[pattern] is None and any(
            matches(pattern, name) for name, _ in model.named_modules()
        )

    def copy_of(
        self,
        model: Any,
        *,
        x_format: Format | str | None = None,
        importance: Importance = RANDOM,
        progress: bool | None = None,
    ) -> Any:
        """A quantised copy; the model stays as it is."""
        twin = copy.deepcopy(model)
        self.apply_(twin, x_format=x_format, importance=importance, progress=progress)
        return twin

    def __str__(self) -> str:
        return self.text
