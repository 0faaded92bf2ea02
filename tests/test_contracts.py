"""The import contracts hold, and are seen to fail when broken."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hanging

pytest.importorskip("importlinter")

ROOT = Path(__file__).parents[1]


# The hook of an editable install comes before PYTHONPATH, and would find the package that is
# installed instead of the copy.
LINT = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "Redirecting" not in type(each).__name__]
from importlinter.cli import lint_imports_command
lint_imports_command()
"""


def lint(directory):
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=directory,
        env={"PYTHONPATH": str(directory / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=hanging.SECONDS,
    )


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_contracts_hold(copy):
    result = lint(copy)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("path", "line", "contract"),
    [
        ("formats/elements.py", "import torch", "formats need the standard library only"),
        ("layouts/bits.py", "import blockscale.numerics", "imports run one way"),
        ("numerics/exact.py", "import blockscale.tensor", "imports run one way"),
        ("numerics/fit.py", "import blockscale.runtime", "never ask which machine"),
        ("tensor/verbs.py", "import blockscale.kernels", "kernels are reached through ops"),
        ("new_folder/__init__.py", "", "imports run one way"),
    ],
)
def test_a_broken_contract_is_noticed(copy, path, line, contract):
    target = copy / "src" / "blockscale" / path
    target.parent.mkdir(exist_ok=True)
    text = target.read_text() if target.exists() else ""
    target.write_text(text + f"\n{line}\n")
    result = lint(copy)
    assert result.returncode != 0
    assert contract in result.stdout.replace("\n", " ")
