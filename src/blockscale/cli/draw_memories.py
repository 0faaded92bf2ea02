"""Pictures of an SM's memories: TMEM with sums and scales, and swizzled shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockscale.cli.draw_layout import CENTRED, GROUPS, INK, PADDING, pyplot
from blockscale.formats import Format
from blockscale.layouts import Region, ScaledMemory, Swizzled
from blockscale.layouts.tensor_memory import COLUMNS, LANES

_SUMS = ("#c6dbef", "#c7e9c0")  # of each accumulator
_SCALES = {"x": "#fdd0a2", "w": "#dadaeb"}
# One for each 16 bytes along k: eight, told apart without their labels.
_CHUNKS = (*GROUPS, "#fcbba1", "#ffeda0", "#d9d9d9", "#c7eae5")


def draw_tensor_memory(memory: ScaledMemory, title: str, path: Path) -> None:
    """Write an SVG or PNG of 128 lanes by 512 columns, and of one set of scales."""
    plt = pyplot()
    figure, (whole, scales) = plt.subplots(
        2, 1, figsize=(16, 10), gridspec_kw={"height_ratios": [1, 1.1]}
    )
    _draw_columns(whole, memory)
    _draw_set(scales, memory)
    figure.suptitle(f"TMEM of a CTA: {title}.  {memory}", fontsize=12, x=0.02, ha="left")
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_columns(axes: Any, memory: ScaledMemory) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((0, 0), COLUMNS, LANES, facecolor=PADDING))
    regions = list(memory.regions())
    for i, each in enumerate(regions[: memory.accumulators]):
        box = (each.start, 0), each.stop - each.start, LANES
        axes.add_patch(Rectangle(*box, facecolor=_SUMS[i], edgecolor=INK, alpha=0.8))
        middle = (each.start + each.stop) / 2 + (i or -1) * memory.shared / 2
        label = f"{each.name}: columns {each.start} .. {each.stop - 1}\nlane i: sums of row i of x"
        axes.text(middle, LANES / 2, label, **CENTRED)
    if memory.shared:
        start = memory.mma_n - memory.shared
        shared = Rectangle((start, 0), memory.shared, LANES, fill=False, hatch="//", edgecolor=INK)
        axes.add_patch(shared)
        label = f"shared\n{start} .. {memory.mma_n - 1}\nread first"
        backed = {"facecolor": "white", "edgecolor": "none", "pad": 2}
        axes.text(start + memory.shared / 2, LANES / 2, label, bbox=backed, **CENTRED)
    for each in regions[memory.accumulators :]:
        colour = _SCALES[each.name[-1]]
        box = (each.start, 0), each.stop - each.start, LANES
        axes.add_patch(Rectangle(*box, facecolor=colour, edgecolor=INK))
        label = f"{each.name}: {each.start} .. {each.stop - 1}"
        axes.text((each.start + each.stop) / 2, LANES / 2, label, rotation=90, **_small(each))
    if memory.used < COLUMNS:
        label = f"free: {COLUMNS - memory.used}"
        axes.text((memory.used + COLUMNS) / 2, LANES / 2, label, rotation=90, **CENTRED)
    axes.set_title("1. 128 lanes x 512 columns of 32 bits", fontsize=10, loc="left")
    axes.set_xlim(0, COLUMNS)
    axes.set_ylim(LANES, 0)
    axes.set_xticks(range(0, COLUMNS + 1, 32))
    axes.set_yticks(range(0, LANES + 1, 32))
    axes.set_xlabel("column")
    axes.set_ylabel("lane")


def _draw_set(axes: Any, memory: ScaledMemory) -> None:
    """Which rows' scales a column has: those of 32 rows, four along k to a cell."""
    start = memory.first_set
    for group in range(memory.scale_groups):
        _draw_scale_group(axes, "x", group, start + 4 * group, LANES)
        columns = memory.mma_n // 32
        at = start + memory.x_columns + columns * group
        _draw_scale_group(axes, "w", group, at, memory.mma_n)
    border = start + memory.x_columns
    axes.plot([border, border], [0, LANES], color=INK, linewidth=3)
    axes.set_title(
        "2. one set of scales: the rows whose scales a column has, one to a lane; a cell's four "
        "bytes are the four scales of a group along k\n"
        "tcgen05.cp.32x128b.warpx4 gives each quarter of the lanes the same; left of the line is "
        "x, right of it w",
        fontsize=10,
        loc="left",
        pad=18,
    )
    axes.set_xlim(start, start + memory.set_columns)
    axes.set_ylim(LANES, 0)
    axes.set_xticks(range(start, start + memory.set_columns + 1, 4))
    axes.set_yticks(range(0, LANES + 1, 32))
    axes.set_xlabel("column")
    axes.set_ylabel("lane")


def _draw_scale_group(axes: Any, operand: str, group: int, start: int, rows: int) -> None:
    from matplotlib.patches import Rectangle

    small = {**CENTRED, "fontsize": 7}
    for first in range(0, rows, 32):
        column = start + first // 32
        for lane in range(0, LANES, 32):
            colour = GROUPS[first // 32 % 4]
            axes.add_patch(Rectangle((column, lane), 1, 32, facecolor=colour, edgecolor="white"))
            label = f"{first}-{first + 31}"
            axes.text(column + 0.5, lane + 16, label, rotation=90, **small)
    axes.text(start + rows / 64, -4, f"{operand}, group {group}", **small)
    axes.plot([start, start], [0, LANES], color=INK, linewidth=1)


def _small(region: Region) -> dict[str, Any]:
    return {**CENTRED, "fontsize": 8 if region.stop - region.start >= 8 else 6}


def draw_shared_memory(panel: Swizzled, format: Format, chunk: int, path: Path) -> None:
    """Write an SVG or PNG: the panel as a matrix, and where its 16-byte chunks are."""
    plt = pyplot()
    figure, (matrix, memory) = plt.subplots(1, 2, figsize=(16, 5))
    rows = panel.size // 128
    places = {(r, c): divmod(panel(r, 16 * c) // 16, 8) for r in range(rows) for c in range(8)}
    _draw_chunks(matrix, {(r, c): (r, c) for r, c in places}, chunk)
    _draw_chunks(memory, places, chunk)
    matrix.set_title(
        f"1. {rows} rows x {8 * chunk} codes along k: a cell is 16 bytes", fontsize=10, loc="left"
    )
    memory.set_title(
        "2. in shared memory: row r of 128 bytes has its cells exchanged by r % 8\n"
        "a column of cells is four banks: eight rows of one k meet in no bank twice",
        fontsize=10,
        loc="left",
    )
    matrix.set_xlabel("codes along k")
    matrix.set_xticks(range(9), [str(c * chunk) for c in range(9)])
    memory.set_xlabel("byte of 128")
    memory.set_xticks(range(9), [str(16 * c) for c in range(9)])
    for axes in (matrix, memory):
        axes.set_xlim(0, 8)
        axes.set_ylim(rows, 0)
        axes.set_yticks([r + 0.5 for r in range(rows)], [str(r) for r in range(rows)])
    matrix.set_ylabel("row r")
    memory.set_ylabel("128 bytes of shared memory")
    figure.suptitle(f"{format} in shared memory: {panel}", fontsize=12, x=0.02, ha="left")
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_chunks(axes: Any, places: dict[tuple[int, int], tuple[int, int]], chunk: int) -> None:
    from matplotlib.patches import Rectangle

    for (r, c), (line, at) in places.items():
        box = Rectangle((at, line), 1, 1, facecolor=_CHUNKS[c], edgecolor="white", linewidth=2)
        axes.add_patch(box)
        label = f"r {r}\nk {c * chunk}-{(c + 1) * chunk - 1}"
        axes.text(at + 0.5, line + 0.5, label, **CENTRED)
