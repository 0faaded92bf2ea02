"""A picture of blocked scales: the tiles and their padding, one atom, and the bytes it becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockscale.formats import Format
from blockscale.layouts import ATOM_BYTES, ATOM_COLUMNS, ATOM_ROWS, scale_atom, scale_layout

# Rows r, r + 32, r + 64 and r + 96 share a 16-byte word: one colour for each group of 32 rows.
GROUPS = ("#9ecae1", "#fdd0a2", "#a1d99b", "#dadaeb")
INK, PADDING = "#333333", "#eeeeee"
# Not asked for its size when axes are laid out: it lies within its cell.
CENTRED: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "fontsize": 8,
    "color": INK,
    "in_layout": False,
}
_MOST_TILES = 6  # drawn along each side; more would be too small to read


def draw_scale_layout(format: Format, rows: int, columns: int, path: Path) -> None:
    """Write an SVG or PNG that shows where the scales of a [rows, columns] matrix go."""
    plt = pyplot()
    figure, (tiles, atom, memory) = plt.subplots(
        1, 3, figsize=(16, 8), gridspec_kw={"width_ratios": [1.1, 0.7, 2.2]}
    )
    _draw_tiles(tiles, format, rows, columns)
    _draw_atom(atom, format)
    _draw_memory(memory, format)
    figure.suptitle(
        f"{format}: {rows} x {columns} {format.scale.name} scales, "
        f"{format.block} elements along k share each.  Atom {scale_atom(format.block)}",
        fontsize=13,
        x=0.02,
        ha="left",
    )
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def pyplot() -> Any:
    """Or how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise ImportError(
            "drawing needs matplotlib: pip install 'blockscale[plots]', or pass --no-draw"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _draw_tiles(axes: Any, format: Format, rows: int, columns: int) -> None:
    """The scale matrix, cut into atoms, numbered in memory order; padding is grey."""
    from matplotlib.patches import Rectangle

    high, wide = -(-rows // ATOM_ROWS), -(-columns // ATOM_COLUMNS)
    shown_high, shown_wide = min(high, _MOST_TILES), min(wide, _MOST_TILES)
    layout = scale_layout((rows, columns * format.block), format)
    for i in range(shown_high):
        for j in range(shown_wide):
            axes.add_patch(Rectangle((j, i), 1, 1, facecolor=PADDING, edgecolor="none"))
            live_rows = min(rows - i * ATOM_ROWS, ATOM_ROWS)
            live_columns = min(columns - j * ATOM_COLUMNS, ATOM_COLUMNS) / ATOM_COLUMNS
            for group, colour in enumerate(GROUPS):
                height = max(0, min(live_rows - 32 * group, 32)) / ATOM_ROWS
                corner = (j, i + group / 4)
                axes.add_patch(Rectangle(corner, live_columns, height, facecolor=colour))
            axes.add_patch(Rectangle((j, i), 1, 1, fill=False, edgecolor=INK, linewidth=1.5))
            start = layout(i * ATOM_ROWS, j * ATOM_COLUMNS * format.block)
            label = f"tile {start // ATOM_BYTES}\nbytes {start}..{start + ATOM_BYTES - 1}"
            axes.text(j + 0.5, i + 0.5, label, **CENTRED)
    more = "" if (high, wide) == (shown_high, shown_wide) else f", {high} x {wide} in all"
    axes.set_title(
        f"1. the scale matrix, in tiles of {ATOM_ROWS} x {ATOM_COLUMNS}{more}\n"
        "tiles run along k first; grey is zero padding",
        fontsize=10,
        loc="left",
    )
    axes.set_xlim(0, shown_wide)
    axes.set_ylim(shown_high, 0)
    axes.set_xticks(range(shown_wide + 1), [str(j * ATOM_COLUMNS) for j in range(shown_wide + 1)])
    axes.set_yticks(range(shown_high + 1), [str(i * ATOM_ROWS) for i in range(shown_high + 1)])
    axes.set_xlabel(f"scale column c  (element column / {format.block})")
    axes.set_ylabel("row r")


def _draw_atom(axes: Any, format: Format) -> None:
    """One tile as the matrix sees it: four groups of 32 rows."""
    from matplotlib.patches import Rectangle

    layout = scale_layout((ATOM_ROWS, ATOM_COLUMNS * format.block), format)
    for group, colour in enumerate(GROUPS):
        for c in range(ATOM_COLUMNS):
            axes.add_patch(
                Rectangle((c, 32 * group), 1, 32, facecolor=colour, edgecolor="white", linewidth=2)
            )
            for row, height in ((0, 2.5), (1, 7.5), (31, 29)):  # 0 and 1 apart, to be readable
                offset = str(layout(32 * group + row, c * format.block))
                axes.text(c + 0.5, 32 * group + height, offset, **CENTRED)
            axes.text(c + 0.5, 32 * group + 16, "...", **CENTRED)
    axes.set_title("2. one tile: byte offset\nof each scale", fontsize=10, loc="left")
    axes.set_xlim(0, ATOM_COLUMNS)
    axes.set_ylim(ATOM_ROWS, 0)
    axes.set_xticks([c + 0.5 for c in range(ATOM_COLUMNS)], [f"c={c}" for c in range(ATOM_COLUMNS)])
    axes.set_yticks(range(0, ATOM_ROWS + 1, 32))
    axes.set_ylabel("row in the tile")


def _draw_memory(axes: Any, format: Format) -> None:
    """The same tile as memory: 32 words of 16 bytes, each with four scales of four rows."""
    from matplotlib.patches import Rectangle

    layout = scale_layout((ATOM_ROWS, ATOM_COLUMNS * format.block), format)
    where = {
        layout(r, c * format.block): (r, c) for r in range(ATOM_ROWS) for c in range(ATOM_COLUMNS)
    }
    for offset, (r, c) in where.items():
        word, byte = divmod(offset, 16)
        axes.add_patch(Rectangle((byte, word), 1, 1, facecolor=GROUPS[r // 32], edgecolor="white"))
        axes.text(byte + 0.5, word + 0.52, f"{r},{c}", **{**CENTRED, "fontsize": 7})
    axes.set_title(
        "3. the tile in memory: each cell is a byte, labelled r,c\n"
        "a 16-byte word holds the four scales of rows r, r+32, r+64 and r+96",
        fontsize=10,
        loc="left",
    )
    axes.set_xlim(0, 16)
    axes.set_ylim(32, 0)
    axes.set_xticks(range(0, 17, 4))
    axes.set_yticks(range(0, 33, 4), [str(16 * word) for word in range(0, 33, 4)])
    axes.set_xlabel("byte of the word")
    axes.set_ylabel("byte offset of the word in the tile")
