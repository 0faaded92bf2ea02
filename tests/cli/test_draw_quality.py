"""The picture of quality against size: whiskers in proportion, names that can be read."""

import itertools
import math

import pytest

plt = pytest.importorskip("matplotlib.pyplot")

from blockscale.cli import draw_quality  # noqa: E402
from blockscale.cli.draw_quality import _draw, _name, _overlap, _Point, _point  # noqa: E402
from blockscale.models import Quality  # noqa: E402

POINTS = [
    _Point("mxfp8", 8.25, 0.02, 0.3),  # an error that is larger than the loss
    _Point("mxfp6_e2m3", 6.25, -0.1, 0.3),  # better than the original
    _Point("nvfp4", 4.5, 10.5, 1.1),
    _Point("kbit4", 4.25, 9.0, 1.0),
    _Point("*.v_proj=kbit5,kbit4", 4.28, 7.2, 0.7),
    _Point("kbit3", 3.25, 100.3, 6.0),
]


@pytest.fixture
def axes():
    figure, axes = plt.subplots(figsize=(6, 5.2))
    yield axes
    plt.close(figure)


def height(axes, value):
    return axes.transData.transform((0, value))[1]


def test_whiskers_that_reach_zero_are_as_long_below_as_above(axes):
    _draw(axes, POINTS, "")
    for point in POINTS[:2]:
        middle = height(axes, point.value)
        above = height(axes, point.value + point.error) - middle
        assert middle - height(axes, point.value - point.error) == pytest.approx(above)


def test_the_axis_is_logarithmic_where_no_whisker_reaches_zero(axes):
    _draw(axes, POINTS[2:], "")
    for point in POINTS[2:]:
        decades = math.log10(point.value / (point.value - point.error))
        length = height(axes, point.value) - height(axes, point.value - point.error)
        assert length == pytest.approx(decades * (height(axes, 10) - height(axes, 1)))


def test_no_name_covers_another_name_or_a_point(axes):
    _draw(axes, POINTS, "")
    axes.figure.draw_without_rendering()
    _name(axes, POINTS)
    boxes = [text.get_window_extent().extents for text in axes.texts]
    assert len(boxes) == len(POINTS)
    assert not any(_overlap(*pair) for pair in itertools.combinations(boxes, 2))
    for point in POINTS:
        x, y = axes.transData.transform((point.bits, point.value))
        assert not any(_overlap(box, (x - 5, y - 5, x + 5, y + 5)) for box in boxes)


def test_a_single_window_has_no_whisker(tmp_path):
    quality = Quality("kbit4", 4.25, 1, 64, 9.0, math.nan, 1.09, math.nan, 0.08, math.nan)
    assert _point(quality, 9.0, math.nan).error == 0
    draw_quality.draw_quality([quality], "model", tmp_path / "one.svg")
    assert (tmp_path / "one.svg").stat().st_size > 10_000
