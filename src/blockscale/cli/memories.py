"""What `blockscale layout` says of each memory, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from blockscale import ops
from blockscale.cli.draw_layout import draw_scale_layout
from blockscale.cli.draw_memories import draw_shared_memory, draw_tensor_memory
from blockscale.formats import Format
from blockscale.layouts import (
    ATOM_COLUMNS,
    ATOM_ROWS,
    PANEL_BYTES,
    Layout,
    canonical,
    scale_atom,
    scale_layout,
    swizzled_panel,
)
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu as find_gpu

_ROWS = (0, 1, 31, 32, 64, 96, 127, 128)  # whose offsets are shown, and the last
_COLUMNS = 8
_PANEL_ROWS = 8  # in which a swizzle comes round


class Shown(NamedTuple):
    facts: dict[str, Any]
    lines: list[str]
    draw: Callable[[Path], None]


def blocked(entry: Format, rows: int, k: int, batches: int) -> Shown:
    """Scales as files and tensor cores have them."""
    columns = k // entry.block
    whole = scale_layout((rows, k, batches), entry)
    high, wide = rows + -rows % ATOM_ROWS, columns + -columns % ATOM_COLUMNS
    offsets = {  # of matrix 0: by row, one for each of the first scale columns
        r: [whole(r, c * entry.block, 0) for c in range(min(columns, _COLUMNS))]
        for r in _below(rows, (*_ROWS, rows - 1))
    }
    facts = {
        "format": entry.name,
        "scale": entry.scale.name,
        "block": entry.block,
        "shape": [rows, k, batches],
        "scales": [rows, columns],
        "padded_scales": [high, wide],
        "bytes": whole.cosize,
        "atom": str(scale_atom(entry.block)),
        "layout": str(whole),
        "offsets": offsets,
    }
    lines = [
        f"{entry.name}: one {entry.scale.name} scale for {entry.block} elements along k",
        f"tensor  {rows} x {k} x {batches}: {rows} x {columns} scales each",
        f"padded  {high} x {wide} scales, {whole.cosize} bytes in all",
        f"atom    {facts['atom']}",
        f"scales  {whole}",
        "offsets of row r, scale column c (matrix 0):",
        *_table(offsets),
    ]
    return Shown(facts, lines, partial(draw_scale_layout, entry, rows, columns))


def shared(entry: Format, rows: int) -> Shown:
    """Codes of the first rows and 128 bytes along k, in the shared memory of an SM."""
    high = min(rows, _PANEL_ROWS)
    panel = swizzled_panel(high)
    chunk = 32 if entry.element.bits == 4 else 16  # codes of 6 bits are spread to bytes
    offsets = {r: [panel(r, 16 * c) for c in range(PANEL_BYTES // 16)] for r in range(high)}
    facts = {
        "format": entry.name,
        "memory": "shared",
        "layout": str(panel),
        "codes_of_16_bytes": chunk,
        "offsets": offsets,
    }
    lines = [
        f"{entry.name}: {PANEL_BYTES // 16 * chunk} codes in the {PANEL_BYTES} bytes of a row",
        f"shared  {panel}: bytes [rows, {PANEL_BYTES}] with a swizzle of {PANEL_BYTES} bytes",
        f"offsets of row r, {chunk} codes each:",
        *_table(offsets),
    ]
    return Shown(facts, lines, partial(draw_shared_memory, panel, entry, chunk))


def tmem(entry: Format, shape: tuple[int, int, int], gpu: str) -> Shown:
    """Of the product x [m, k] @ w [n, k].T, both quantised alike, as it is run untuned."""
    m, n, k = shape
    kind = str(Kind(entry, Layout(canonical(entry).codes, "blocked")))
    device = find_gpu(gpu)
    problem = Problem(verb="matmul", m=m, n=n, k=k, x=kind, w=kind, out="bfloat16", device=device)
    found = ops.tensor_memory(problem)
    regions = list(found.regions())
    facts = {
        "format": entry.name,
        "memory": "tmem",
        "shape": [m, n, k],
        "gpu": gpu,
        "columns": found.used,
        "unshared_columns": found.unshared,
        "regions": [each._asdict() for each in regions],
    }
    lines = [
        f"{entry.name} x {entry.name}, m x n x k = {m} x {n} x {k}, on {gpu}",
        f"TMEM    {found}",
        f"        two accumulators and one set side by side would need {found.unshared}",
        *(f"  {each.start:>3d} .. {each.stop - 1:>3d}  {each.name}" for each in regions),
    ]
    return Shown(facts, lines, partial(draw_tensor_memory, found, lines[0]))


def _table(offsets: dict[int, list[int]]) -> list[str]:
    return [f"  r={r:<6d}" + "".join(f"{each:>8d}" for each in row) for r, row in offsets.items()]


def _below(limit: int, wanted: Iterable[int]) -> list[int]:
    return sorted({index for index in wanted if 0 <= index < limit})
