"""Every name has its row in docs/compat.md."""

import re
from pathlib import Path

import pytest

from blockscale import compat

PAGE = (Path(__file__).parents[2] / "docs" / "compat.md").read_text()


@pytest.mark.parametrize("name", compat.__all__)
def test_every_name_has_a_row(name):
    assert re.search(rf"^\| `{name}\b", PAGE, flags=re.MULTILINE)
