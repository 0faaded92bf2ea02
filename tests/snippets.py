"""The blocks of code in the documentation, and what of them is not run, with the reasons."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = ("python", "sh")

# Blocks that are no code, by their first line.
NOT_CODE = {
    "x[..., r, c] = decode(code[..., r, c])": "a formula",
    "src/blockscale/": "the tree",
    "{": "what a config.json holds",
    "matmul m=1 n=14336 k=4096": "what `blockscale explain` prints",
}

# Command lines that are not run, by how they begin.
NOT_RUN = {
    "make demo": "installs packages and runs for minutes",
    "make test": "runs this test",
    "make wheels": "compiles for minutes; tests/test_wheels.py",
    "make bench": "installs packages and measures for minutes",
    "python -m bench.": "measures for minutes, mostly on a GPU; tests/bench has its parts",
    "pip install ": "this environment has what its tests need",
    "vllm serve ": "vLLM is in an environment of its own; tests/serving starts servers",
    "python -m vllm.": "likewise",
    "torchrun ": "starts two ranks; tests/distributed has two",
    "blockscale --show-completion": "asks for the shell above it; tests/cli/test_completion.py",
    "blockscale warmup": "compiles for minutes; tests/cli/test_warmup.py",
    "blockscale prove": "asks for a GPU; tests/cli/test_prove.py and tests/gpu/test_proof.py",
}

# What stands in a page, and what is run in its place: the same on a shape that is timed at once.
SMALLER = {"14336x4096": "48x64", "1536x2048": "32x64", "--experts 64": "--experts 4"}


class Block(NamedTuple):
    page: Path
    line: int
    language: str  # "" for one that is indented, or has none
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All of a page, fenced or indented, in order."""
    found, lines, number = [], page.read_text().splitlines(), 0
    while number < len(lines):
        start, line = number, lines[number]
        number += 1
        if line.startswith("```"):
            while not lines[number].startswith("```"):
                number += 1
            found.append(Block(page, start + 1, line[3:], "\n".join(lines[start + 1 : number])))
            number += 1
        elif line.startswith("    ") and not (start and lines[start - 1].strip()):
            while number < len(lines) and lines[number].startswith("    "):
                number += 1
            text = "\n".join(each[4:] for each in lines[start:number])
            found.append(Block(page, start + 1, "", text))
    return found


def command_lines(block: Block) -> list[str]:
    """Without comments; a line that ends in a backslash goes on."""
    joined = block.text.replace("\\\n", " ")
    split = (shlex.split(line, comments=True) for line in joined.splitlines())
    return [shlex.join(words) for words in split if words]


def why_not_run(line: str) -> str:
    return next((reason for start, reason in NOT_RUN.items() if line.startswith(start)), "")


def inline_commands(page: Path) -> list[str]:
    """Command lines within sentences, such as `blockscale formats`."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(each.split()) for each in re.findall(r"`(blockscale [^`]+)`", text)]
