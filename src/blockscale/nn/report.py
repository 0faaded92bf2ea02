"""What `quantize_` did to each layer, and what it cost in accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockscale.formats import Format


@dataclass(frozen=True)
class LayerReport:
    """One weight: quantised, or kept for a reason."""

    name: str
    shape: tuple[int, ...]
    bytes_before: int
    bytes_after: int
    format: Format | None = None
    relative_error: float = 0.0  # |w - dequantised| / |w|, Euclidean
    reason: str = ""  # why it was kept, or whose copy it is
    weighted: bool = False  # its scales were searched with an importance for each column

    @property
    def is_quantized(self) -> bool:
        return self.format is not None

    @property
    def sqnr(self) -> float:
        """Signal to quantisation noise, in dB."""
        return math.inf if self.relative_error == 0 else -20 * math.log10(self.relative_error)


@dataclass(frozen=True)
class Report:
    """Every layer that could have been quantised, in the order of the model."""

    layers: tuple[LayerReport, ...]
    unused_patterns: tuple[str, ...] = ()  # of formats by name: no layer got its format from these
    importance: str = ""  # where that of the columns is from, or why there is none

    @property
    def quantized(self) -> tuple[LayerReport, ...]:
        return tuple(layer for layer in self.layers if layer.is_quantized)

    @property
    def kept(self) -> tuple[LayerReport, ...]:
        return tuple(layer for layer in self.layers if not layer.is_quantized)

    @property
    def bytes_before(self) -> int:
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        return sum(layer.bytes_after for layer in self.layers)

    def __str__(self) -> str:
        lines = _table(self.layers) if self.layers else []
        share = self.bytes_after / max(self.bytes_before, 1)
        lines.append(
            f"{len(self.quantized)} quantised, {len(self.kept)} kept: {_size(self.bytes_before)} "
            f"-> {_size(self.bytes_after)} ({share:.1%})"
        )
        if self.importance:
            lines.append(self._importance())
        lines += [f"no layer got its format from {name!r}" for name in self.unused_patterns]
        return "\n".join(lines)

    def _importance(self) -> str:
        plain = [layer for layer in self.quantized if not layer.weighted]
        if len(plain) == len(self.quantized):
            return f"errors of all columns weigh the same: {self.importance}"
        rest = f", in all but {len(plain)} of {len(self.quantized)} weights" if plain else ""
        return f"errors of columns are weighed by their inputs, {self.importance}{rest}"


_COLUMNS: dict[str, Callable[[LayerReport], str]] = {
    "layer": lambda layer: layer.name,
    "shape": lambda layer: " x ".join(map(str, layer.shape)),
    "format": lambda layer: str(layer.format or "-"),
    "before": lambda layer: _size(layer.bytes_before),
    "after": lambda layer: _size(layer.bytes_after),
    "error": lambda layer: f"{layer.relative_error:.2%}" if layer.is_quantized else "",
    "SQNR": lambda layer: f"{layer.sqnr:.1f} dB" if layer.is_quantized else "",
    "": lambda layer: layer.reason,
}
_NUMBERS = ("before", "after", "error", "SQNR")


def _table(layers: Sequence[LayerReport]) -> list[str]:
    columns = []
    for heading, cell in _COLUMNS.items():
        cells = [heading, *map(cell, layers)]
        width = max(map(len, cells))
        align = str.rjust if heading in _NUMBERS else str.ljust
        columns.append([align(each, width) for each in cells])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"
