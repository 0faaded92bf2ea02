"""The examples of docs/compat.md run, and every name has its row."""

import re
from pathlib import Path

import pytest

from blockscale import compat

PAGE = (Path(__file__).parents[2] / "docs" / "compat.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_examples_run(index):
    exec(compile(BLOCKS[index], f"compat.md block {index}", "exec"), {})


@pytest.mark.parametrize("name", compat.__all__)
def test_every_name_has_a_row(name):
    assert re.search(rf"^\| `{name}\b", PAGE, flags=re.MULTILINE)
