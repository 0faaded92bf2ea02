"""Tables of figures by name: no name and no figure is broken, however narrow the terminal."""

import io

import pytest
from rich.console import Console

from blockscale.cli.eval import _table
from blockscale.cli.tables import NamedRows
from blockscale.models import Quality

LONG = "*.down_proj=kbit5,*.v_proj=kbit5,kbit4+fit"


def lines(table, width):
    console = Console(file=io.StringIO(), width=width, soft_wrap=True)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_names_and_figures_stay_whole(width):
    table = NamedRows(
        "a title that is longer than the narrowest terminal", ("model", "MB", "ratio")
    )
    table.add(LONG, "1,234.5", "1.0950 ± 0.0030")
    table.add("[red]", "7", "")
    found = lines(table, width)
    assert "a title that is longer than the narrowest terminal" in found
    assert any(LONG in line for line in found)
    assert any("[red]" in line for line in found)
    assert any("1,234.5   1.0950 ± 0.0030" in line for line in found)


def test_they_stand_side_by_side_where_there_is_room():
    table = NamedRows("", ("model", "format", "MB"), left=["format"])
    table.add("original", "bf16", "7")
    table.add("small", "nvfp4", "12")
    rows = [line for line in lines(table, 80) if line.strip()]
    assert rows[0] == " model      format   MB"
    assert rows[2:] == [" original   bf16      7", " small      nvfp4    12"]
    rows = lines(table, 20)
    assert rows[2:] == ["original", "bf16      7", "small", "nvfp4    12", ""]


def test_the_table_of_eval_at_80_columns():
    quality = Quality(
        LONG, 4.3125, 123_456_789, 20_000, 18.0912, 0.2345, 1.2291, 0.0164, 0.17, 0.01
    )
    found = lines(_table([quality], "model"), 80)
    assert LONG in found
    (figures,) = [line for line in found if "±" in line]
    numbers = [each for each in figures.split() if each != "±"]
    assert numbers == ["4.31", "123.5", "18.09", "0.23", "1.2291", "0.0164", "0.1700", "0.0100"]
