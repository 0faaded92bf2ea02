"""The README's links lead somewhere, and generated parts are up to date."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.imports import imported_packages, layers

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_generated_parts_are_up_to_date():
    result = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_tree_lists_every_folder():
    package = ROOT / "src" / "blockscale"
    folders = {p.name for p in package.iterdir() if p.is_dir() and p.name != "__pycache__"}
    for folder in folders:
        assert f"{folder}/" in README


def test_design_documents_have_numbers_of_their_own():
    numbers = [path.name[:4] for path in (ROOT / "docs" / "design").glob("*.md")]
    assert sorted(numbers) == [f"{i:04d}" for i in range(1, len(numbers) + 1)]


def test_the_drawing_has_the_imports_that_the_contracts_see():
    graph = pytest.importorskip("grimp").build_graph("blockscale", cache_dir=None)
    drawn = {name: imported_packages(name) for layer in layers() for name in layer}
    seen = {name: set() for name in drawn}
    for module in graph.modules:
        source = module.split(".")[1:2]
        for imported in graph.find_modules_directly_imported_by(module):
            target = imported.split(".")[1:2]
            if target and source and source != target and source[0] in seen:
                seen[source[0]].add(target[0])
    assert drawn == seen
