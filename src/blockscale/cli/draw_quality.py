"""A picture of quality against size: perplexity and divergence over bits per weight."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from blockscale.models import Quality

_INK, _POINT, _GRID = "#333333", "#3182bd", "#eeeeee"
_MARK = 6  # pixels from the middle of a point to its edge
# Where a name may stand: points to the right, points up, which end of it is there.
_PLACES = (
    *((9, 3, "left"), (-9, 3, "right")),
    *((9, 10, "left"), (-9, 10, "right"), (9, -6, "left"), (-9, -6, "right")),
    *((0, y, "center") for y in (14, -14, 24, -24, 34, -34)),
)


class _Point(NamedTuple):
    name: str
    bits: float
    value: float
    error: float


def draw_quality(found: Sequence[Quality], title: str, path: Path) -> None:
    """Write a PNG or SVG of all models that were compared with a reference."""
    quantized = [q for q in found if q.ratio is not None and q.divergence]
    if not quantized:
        raise ValueError("there is nothing to draw: no model was compared with the original")
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.2))
    losses = [_point(q, 100 * ((q.ratio or 1) - 1), 100 * (q.ratio_error or 0)) for q in quantized]
    apart = [_point(q, q.divergence or 0, q.divergence_error or 0) for q in quantized]
    _draw(left, losses, "perplexity above the original's, %")
    _draw(right, apart, "KL divergence from the original, nats per token")
    tokens = quantized[0].tokens
    figure.suptitle(
        f"{title}: what each format costs, over {tokens:,} tokens (bars: standard error)",
        x=0.02,
        ha="left",
        fontsize=12,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.draw_without_rendering()  # settles what is where, which names are placed by
    _name(left, losses)
    _name(right, apart)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _point(quality: Quality, value: float, error: float) -> _Point:
    """Without an error where there was one window only."""
    error = error if isfinite(error) else 0.0
    return _Point(quality.name, quality.bits_per_weight, value, error)


def _draw(axes: Any, points: Sequence[_Point], label: str) -> None:
    """Points over bits per weight, with a whisker of one standard error on both sides."""
    from matplotlib.ticker import LogFormatter

    axes.errorbar(
        [point.bits for point in points],
        [point.value for point in points],
        yerr=[point.error for point in points],
        fmt="o",
        color=_POINT,
        ecolor=_INK,
        elinewidth=1,
        capsize=3,
        markersize=7,
    )
    axes.set_yscale(**_scale(points))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if axes.get_yscale() == "log":  # plain numbers, as on the major ticks
        axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    axes.set_xlabel("bits per weight of linear layers, scales included")
    axes.set_title(label, loc="left", fontsize=10)
    axes.grid(color=_GRID, which="both")
    axes.set_axisbelow(True)
    axes.margins(x=0.18, y=0.12)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)


def _scale(points: Sequence[_Point]) -> dict[str, Any]:
    """Logarithmic, since formats differ by orders of magnitude.

    A whisker that reaches zero has no place there. Then the axis is linear around zero, as far as
    the farthest of these whiskers goes, so that none of them is cut off or drawn out of proportion.
    """
    reaching = [abs(each.value) + each.error for each in points if each.value <= each.error]
    if not reaching:
        return {"value": "log"}
    return {"value": "symlog", "linthresh": max(reaching) or 1e-6, "linscale": 0.6}


def _name(axes: Any, points: Sequence[_Point]) -> None:
    """Each point's name beside it: at the first place where it covers no point and no name."""
    renderer = axes.figure.canvas.get_renderer()
    marks = [axes.transData.transform((point.bits, point.value)) for point in points]
    taken = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in marks]
    for point in points:
        text = axes.annotate(
            point.name,
            (point.bits, point.value),
            xytext=_PLACES[0][:2],
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=_INK,
        )
        for x, y, side in _PLACES:
            text.set(position=(x, y), ha=side)
            box = text.get_window_extent(renderer).extents
            if not any(_overlap(box, other) for other in taken):
                break
        else:
            text.set(position=_PLACES[0][:2], ha=_PLACES[0][2])
        taken.append(text.get_window_extent(renderer).extents)


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ImportError("drawing needs matplotlib: pip install 'blockscale[plots]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
