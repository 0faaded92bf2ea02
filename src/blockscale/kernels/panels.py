"""Row panels: the reference kernels decode so many rows at a time, and hold no more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from blockscale.kernels.contract import Config, Parts
from blockscale.layouts import Layout
from blockscale.numerics import group_slices
from blockscale.problem import Kind, Problem

_ELEMENTS = 1 << 22  # a float64 panel of 32 MB


@dataclass(frozen=True)
class PanelConfig(Config):
    rows: int  # decoded at a time


class Height(Protocol):
    """A config that says how many rows."""

    @property
    def rows(self) -> int: ...


def panel_configs(k: int, granularity: int = 1) -> list[PanelConfig]:
    """`granularity`: rows that the layout cannot cut apart."""
    rows = max(1, _ELEMENTS // max(k, 1))
    return [PanelConfig(rows=rows + -rows % granularity)]


def panels(config: Height, start: int, stop: int) -> Iterator[slice]:
    for first in range(start, stop, config.rows):
        yield slice(first, min(first + config.rows, stop))


def unpack_rows(
    parts: Parts, kind: Kind, shape: tuple[int, int], rows: slice
) -> tuple[Tensor, Tensor]:
    """Codes, one per byte, and scales of some rows of a matrix; parts without a group dimension."""
    format, layout = kind
    codes, scale = layout.slice_rows(parts.codes, parts.scale, format, shape, rows)
    cut = (rows.stop - rows.start, shape[1])
    return layout.unpack_codes(codes, format, cut), layout.unpack_scale(scale, format, cut)


def in_rows(problem: Problem, x: Parts) -> tuple[Parts, Kind]:
    """Quantised x with its scales in rows: blocked ones, which each matrix has padded, placed
    anew."""
    format, layout = problem.x_kind
    if layout.scales != "blocked":
        return x, problem.x_kind
    matrices = 1 if problem.ragged else problem.groups
    shape = (matrices, problem.rows // max(matrices, 1), problem.k)
    scale = layout.unpack_scale(x.scale.reshape(matrices, -1), format, shape).flatten(0, 1)
    return x._replace(scale=scale), Kind(format, Layout(layout.codes, "rows"))


def rows_of_groups(problem: Problem, group_sizes: Tensor | None) -> list[tuple[int, int]]:
    """Start and stop of each group's rows of x; group sizes are read on the host."""
    sizes = [problem.m] * problem.groups if group_sizes is None else group_sizes.tolist()
    return group_slices(sizes, problem.rows)


def matrix(parts: Parts, group: int) -> Parts:
    """One matrix of a group of them."""
    scale = parts.tensor_scale
    return Parts(
        parts.codes[group],
        parts.scale[group],
        None if scale is None else scale[group],
        parts.codebook,
    )
