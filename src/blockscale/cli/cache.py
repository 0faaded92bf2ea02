"""`blockscale cache`: the compiled CUDA kernels on the disk."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table

from blockscale.cli.output import Output

if TYPE_CHECKING:
    from blockscale.runtime.cuda import Cache


def cache(
    out: Output,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all of them.")] = False,
) -> None:
    """Show what is kept of compiled CUDA kernels, or remove it."""
    from blockscale.runtime.cuda import open_cache

    kept = open_cache()
    if kept is None:
        raise RuntimeError("compiled kernels are not kept: see BLOCKSCALE_CACHE in doctor")
    if clear:
        count = kept.clear()
        facts = {"folder": kept.folder, "removed": count}
        out.report(facts, f"removed {count} kernels from {kept.folder}")
        return
    groups = _groups(kept)
    facts = {**totals(kept), "groups": groups}
    out.report(facts, summary(kept), *([_table(groups)] if groups else []))


def totals(kept: Cache) -> dict[str, Any]:
    sizes = [size for _, size in kept.entries()]
    return {
        "folder": kept.folder,
        "kernels": len(sizes),
        "bytes": sum(sizes),
        "limit_bytes": kept.limit,
    }


def summary(kept: Cache) -> str:
    found = totals(kept)
    used, most = found["bytes"] / 2**20, found["limit_bytes"] / 2**20
    return f"{kept.folder}: {found['kernels']} kernels, {used:.1f} of at most {most:.0f} MiB"


def _groups(kept: Cache) -> list[dict[str, Any]]:
    """Kernels of one source, target and compiler are counted together."""
    counts: Counter[tuple[str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    for entry, size in kept.entries():
        key = entry.source, entry.arch, entry.nvrtc
        counts[key] += 1
        sizes[key] += size
    return [
        {"source": key[0], "target": key[1], "nvrtc": key[2], "kernels": count, "bytes": sizes[key]}
        for key, count in sorted(counts.items())
    ]


def _table(groups: list[dict[str, Any]]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    for heading in ("source", "target", "NVRTC"):
        table.add_column(heading)
    for heading in ("kernels", "bytes"):
        table.add_column(heading, justify="right")
    for group in groups:
        table.add_row(*map(str, list(group.values())[:-1]), f"{group['bytes']:,}")
    return table
