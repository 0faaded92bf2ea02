"""A picture of quality against size: perplexity and divergence over bits per weight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockscale.models import Quality

_INK, _POINT, _GRID = "#333333", "#3182bd", "#eeeeee"


def draw_quality(found: Sequence[Quality], title: str, path: Path) -> None:
    """Write a PNG or SVG of all models that were compared with a reference."""
    quantized = [q for q in found if q.ratio is not None and q.divergence]
    if not quantized:
        raise ValueError("there is nothing to draw: no model was compared with the original")
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.2))
    losses = [(q, 100 * ((q.ratio or 1) - 1), 100 * (q.ratio_error or 0)) for q in quantized]
    _draw(left, losses, "perplexity above the original's, %")
    _draw(
        right,
        [(q, q.divergence or 0, q.divergence_error or 0) for q in quantized],
        "KL divergence from the original, nats per token",
    )
    tokens = quantized[0].tokens
    figure.suptitle(
        f"{title}: what each format costs, over {tokens:,} tokens (bars: standard error)",
        x=0.02,
        ha="left",
        fontsize=12,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw(axes: Any, points: Sequence[tuple[Quality, float, float]], label: str) -> None:
    """Points over bits per weight; logarithmic, since formats differ by orders of magnitude."""
    axes.errorbar(
        [q.bits_per_weight for q, _, _ in points],
        [value for _, value, _ in points],
        yerr=[error for _, _, error in points],
        fmt="o",
        color=_POINT,
        ecolor=_INK,
        elinewidth=1,
        capsize=3,
        markersize=7,
    )
    for q, value, _ in points:
        # To the left where there is a neighbour on the right, at about the same height.
        side = -1 if any(_is_beside(q, value, *other) for other in points) else 1
        axes.annotate(
            q.name,
            (q.bits_per_weight, value),
            xytext=(9 * side, 3),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            fontsize=9,
            color=_INK,
        )
    axes.set_yscale("symlog", linthresh=min(abs(value) for _, value, _ in points) or 1e-6)
    axes.set_xlabel("bits per weight of linear layers, scales included")
    axes.set_title(label, loc="left", fontsize=10)
    axes.grid(color=_GRID, which="both")
    axes.set_axisbelow(True)
    axes.margins(x=0.18, y=0.12)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)


def _is_beside(q: Quality, value: float, other: Quality, height: float, _: float) -> bool:
    return 0 < other.bits_per_weight - q.bits_per_weight < 0.6 and value / 2 < height < value * 2


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ImportError("drawing needs matplotlib: pip install 'blockscale[plots]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
