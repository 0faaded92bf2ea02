"""The table of docs/reliability.md: every fault that a test tries, and what comes of it.

A test that breaks something on purpose says so in a marker,

    @pytest.mark.fault("a shard is cut off", outcome="ValueError that names the file")

and the table is made of these. They are read from the source and not by importing the tests, some
of which need a GPU or another library: both texts must therefore be written out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MARKER = "pytest.mark.fault"
# By the folder of the test, in this order.
TITLES = {
    "checkpoint": "Checkpoints: damaged, hostile, interrupted",
    "cli": "Commands",
    "fuzz": "Mutated files",
    "ops": "Kernels: wrong on a GPU that no test has covered",
    "runtime": "Caches, tuning and the machine",
    "kernels": "Kernels",
    "native": "The pool of threads",
    "tensor": "Launch plans",
    "nn": "Modules",
    "gpu": "GPUs",
    "": "Processes that are killed",
}


class Fault(NamedTuple):
    what: str
    outcome: str
    test: str  # tests/FOLDER/FILE.py::NAME

    @property
    def folder(self) -> str:
        parts = Path(self.test.partition("::")[0]).parts
        return parts[1] if len(parts) > 2 else ""


def fault_table(tests: Path) -> str:
    """Markdown: a heading and a table for each folder of tests."""
    faults = list(find_faults(tests))
    for fault in faults:
        if fault.folder not in TITLES:
            raise ValueError(f"{fault.test}: TITLES in docs/faults.py has no {fault.folder!r}")
    folders = {fault.folder for fault in faults}
    sections = []
    for folder, title in TITLES.items():
        if folder not in folders:
            continue
        rows = [f"| {f.what} | {f.outcome} | `{f.test}` |" for f in faults if f.folder == folder]
        head = [f"## {title}", "", "| fault | outcome | test |", "|---|---|---|"]
        sections.append("\n".join([*head, *rows]))
    return "\n\n".join(sections)


def find_faults(tests: Path) -> Iterator[Fault]:
    """In the order of files and lines."""
    for file in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = f"{file.relative_to(tests.parent).as_posix()}::{node.name}"
                for marker in node.decorator_list:
                    if isinstance(marker, ast.Call) and ast.unparse(marker.func) == _MARKER:
                        yield Fault(*_texts(marker, name), name)


def _texts(marker: ast.Call, test: str) -> tuple[str, str]:
    """What is done and its outcome, as they are written."""
    given = [*marker.args, *(each.value for each in marker.keywords if each.arg == "outcome")]
    texts = [each.value for each in given if isinstance(each, ast.Constant)]
    what, outcome = texts if len(texts) == len(given) == 2 else ("", "")
    if not isinstance(what, str) or not isinstance(outcome, str) or not (what and outcome):
        raise ValueError(f'{test}: expected fault("what is done", outcome="what happens")')
    for text in (what, outcome):
        if "|" in text or "\n" in text:
            raise ValueError(f"{test}: {text!r} must fit into a cell of a table")
    return what, outcome
