"""`blockscale cache`: the compiled CUDA kernels on the disk."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from blockscale.runtime.cuda import Cache, open_cache


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all of them.")] = False,
) -> None:
    """Show what is kept of compiled CUDA kernels, or remove it."""
    console = Console(soft_wrap=True, highlight=False)
    kept = open_cache()
    if kept is None:
        raise RuntimeError("compiled kernels are not kept: see BLOCKSCALE_CACHE in doctor")
    if clear:
        count = kept.clear()
        console.print(f"removed {count} kernels from {kept.folder}", markup=False)
        return
    console.print(summary(kept), markup=False)
    if any(True for _ in kept.entries()):
        console.print(_table(kept))


def summary(kept: Cache) -> str:
    sizes = [size for _, size in kept.entries()]
    used, most = sum(sizes) / 2**20, kept.limit / 2**20
    return f"{kept.folder}: {len(sizes)} kernels, {used:.1f} of at most {most:.0f} MiB"


def _table(kept: Cache) -> Table:
    counts: Counter[tuple[str, str, str]] = Counter()
    totals: Counter[tuple[str, str, str]] = Counter()
    for entry, size in kept.entries():
        key = entry.source, entry.arch, entry.nvrtc
        counts[key] += 1
        totals[key] += size
    table = Table(box=SIMPLE, pad_edge=False)
    for heading in ("source", "target", "NVRTC"):
        table.add_column(heading)
    for heading in ("kernels", "bytes"):
        table.add_column(heading, justify="right")
    for key in sorted(counts):
        table.add_row(*key, str(counts[key]), f"{totals[key]:,}")
    return table
