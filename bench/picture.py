"""How close to a plain read of memory the products are: python -m bench.picture

One panel for each shape, drawn from the newest stored run of each GPU: across, the rows of x; up,
the speed at which the weight is read, relative to a plain read of as many bytes in the same run,
below what that read and the rate of large bfloat16 products allow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cuda_tables import PICTURE, cases_of
from bench.results import BASELINE, Case, Run
from bench.tables import newest

OUT = Path(__file__).parents[1] / "docs" / PICTURE
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


def main() -> int:
    runs = newest("cuda")
    if not runs:
        print("no run on a GPU is stored")
        return 1
    draw(runs[0], OUT)
    print(OUT)
    return 0


def draw(run: Run, path: Path) -> None:
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
        _panel(panel, shape, cases_of(run, shape), run.machine["product_flops_per_second"])
    for panel in panels[len(shapes) :]:
        panel.remove()
    for row in axes:
        row[0].set_ylabel("% of a plain read")
    handles: dict[str, Any] = {}
    for panel in panels[: len(shapes)]:
        lines, names = panel.get_legend_handles_labels()
        handles.update(zip(names, lines, strict=True))
    figure.suptitle(f"{run.machine['gpu']}: speed at which weights are read, {run.date[:10]}")
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


def _panel(
    panel: Any, shape: tuple[int, int], cases: Sequence[Case], flops_per_second: float
) -> None:
    for name, style in _LINES.items():
        points = [
            (case.m, percent)
            for case in cases
            if (entry := case.entry(name)) and (percent := case.percent_of_ceiling(entry))
        ]
        if points:
            panel.plot(*zip(*points, strict=True), label=name, markersize=4, linewidth=1.4, **style)
    roofs = [(case.m, roof) for case in cases if (roof := _roof(case, flops_per_second))]
    if roofs:
        panel.plot(*zip(*roofs, strict=True), color="#bbbbbb", linewidth=2.5, label=_ROOF, zorder=0)
    panel.set_xscale("log", base=2)
    ms = sorted({case.m for case in cases})
    panel.set_xticks(ms, [str(m) for m in ms])
    panel.minorticks_off()
    panel.set_ylim(0, 108)
    panel.set_title(f"{shape[0]} x {shape[1]}", fontsize=10)
    panel.set_xlabel("M, rows of x")
    panel.grid(axis="y", color="#eeeeee")


if __name__ == "__main__":
    sys.exit(main())
