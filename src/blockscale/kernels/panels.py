"""Row panels: how the reference kernels bound their memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_ELEMENTS = 1 << 22  # float64 temporaries of 32 MB each


@dataclass(frozen=True)
class PanelConfig:
    rows: int  # decoded at a time


def panel_configs(k: int) -> list[PanelConfig]:
    return [PanelConfig(rows=max(1, _ELEMENTS // max(k, 1)))]


def panels(total: int, config: PanelConfig) -> Iterator[slice]:
    for start in range(0, total, config.rows):
        yield slice(start, min(start + config.rows, total))
