"""The speed of products on a GPU in two pictures: python -m bench.picture

One panel for each shape, drawn from the newest stored run of each GPU: across, the rows of x. Up,
in the first, the speed at which the weight is read, relative to a plain read of as many bytes in
the same run, below what that read and the rate of large bfloat16 products allow; in the second,
times the speed of torch's bfloat16.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.cuda_tables import READ_PICTURE, SPEED_PICTURE, cases_of
from bench.results import BASELINE, Case, Entry, Run
from bench.tables import newest

DOCS = Path(__file__).parents[1] / "docs"
_LINES = {  # who is drawn, and how
    "NVFP4": {"color": "#1b7837", "marker": "o"},
    "MXFP4": {"color": "#5aae61", "marker": "s"},
    "KBIT4": {"color": "#762a83", "marker": "^"},
    "humming nvfp4": {"color": "#d95f02", "marker": "o", "linestyle": "--"},
    "bitsandbytes nf4": {"color": "#a6761d", "marker": "v", "linestyle": "--"},
    BASELINE: {"color": "#666666", "marker": "x", "linestyle": ":"},
}
_ROOF = "limit by bytes and arithmetic"
_ACROSS = 4  # panels in a row

Fill = Callable[[Any, Sequence[Case]], None]


def main() -> int:
    runs = newest("cuda")
    if not runs:
        print("no run on a GPU is stored")
        return 1
    draw_both(runs[0], DOCS)
    return 0


def draw_both(run: Run, docs: Path) -> None:
    share = partial(_share_of_read, flops_per_second=run.machine["product_flops_per_second"])
    title = "speed at which weights are read"
    draw(run, share, title, "% of a plain read", docs / READ_PICTURE)
    draw(run, _speed, "speed of products", "times torch's bfloat16", docs / SPEED_PICTURE)


def draw(run: Run, fill: Fill, title: str, label: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shapes = list(dict.fromkeys(case.shape for case in run.cases))
    across = min(_ACROSS, len(shapes))
    down = -(-len(shapes) // across)
    figure, axes = pyplot.subplots(
        down, across, figsize=(3.4 * across, 3.0 * down + 0.9), sharey=True, squeeze=False
    )
    panels = list(axes.flat)
    for panel, shape in zip(panels, shapes, strict=False):
        cases = cases_of(run, shape)
        fill(panel, cases)
        _set_axes(panel, shape, cases)
    panels[0].set_ylim(bottom=0)  # of all panels, once all are drawn
    for panel in panels[len(shapes) :]:
        panel.remove()
    for row in axes:
        row[0].set_ylabel(label)
    handles: dict[str, Any] = {}
    for panel in panels[: len(shapes)]:
        lines, names = panel.get_legend_handles_labels()
        handles.update(zip(names, lines, strict=True))
    figure.suptitle(f"{run.machine['gpu']}: {title}, {run.date[:10]}")
    figure.legend(
        handles.values(), handles.keys(), loc="lower center", ncols=len(handles), frameon=False
    )
    figure.tight_layout(rect=(0, 0.3 / (3.0 * down + 0.9), 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _roof(case: Case, flops_per_second: float) -> float | None:
    """The most that a 4-bit weight can reach: a read, or the arithmetic where that takes longer."""
    entry = next((case.entry(name) for name in _LINES if case.entry(name)), None)
    read = case.read_like(entry) if entry else None
    if read is None or read.time is None:
        return None
    arithmetic = 1e6 * 2 * case.m * case.n * case.k / flops_per_second
    return 100 * min(1.0, read.time.median / arithmetic)


def _share_of_read(panel: Any, cases: Sequence[Case], flops_per_second: float) -> None:
    _plot(panel, cases, lambda case, entry: case.percent_of_ceiling(entry))
    roofs = [(case.m, roof) for case in cases if (roof := _roof(case, flops_per_second))]
    if roofs:
        panel.plot(*zip(*roofs, strict=True), color="#bbbbbb", linewidth=2.5, label=_ROOF, zorder=0)
    panel.set_ylim(0, 108)


def _speed(panel: Any, cases: Sequence[Case]) -> None:
    _plot(panel, cases, lambda _, entry: entry.ratio.median if entry.ratio else None)


def _plot(panel: Any, cases: Sequence[Case], height: Callable[[Case, Entry], float | None]) -> None:
    for name, style in _LINES.items():
        points = [
            (case.m, value)
            for case in cases
            if (entry := case.entry(name)) and (value := height(case, entry))
        ]
        if points:
            panel.plot(*zip(*points, strict=True), label=name, markersize=4, linewidth=1.4, **style)


def _set_axes(panel: Any, shape: tuple[int, int], cases: Sequence[Case]) -> None:
    panel.set_xscale("log", base=2)
    ms = sorted({case.m for case in cases})
    panel.set_xticks(ms, [str(m) for m in ms], fontsize=8, rotation=45 if len(ms) > 9 else 0)
    panel.minorticks_off()
    panel.set_title(f"{shape[0]} x {shape[1]}", fontsize=10)
    panel.set_xlabel("M, rows of x")
    panel.grid(axis="y", color="#eeeeee")


if __name__ == "__main__":
    sys.exit(main())
