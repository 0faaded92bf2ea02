"""The examples of docs/models.md run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_examples_run(index):
    if "from transformers" in BLOCKS[index]:
        pytest.importorskip("transformers")
    if "blockscale.integrations" in BLOCKS[index]:  # which changes the process it runs in
        subprocess.run([sys.executable, "-c", BLOCKS[index]], check=True, timeout=300)
        return
    exec(compile(BLOCKS[index], f"models.md block {index}", "exec"), {})
