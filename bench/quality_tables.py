"""The documentation's table of importance, from the stored runs of `bench.quality`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results" / "quality"
_WEIGHED_BY = {"none": "nothing", "random": "inputs on random ids", "text": "inputs on text"}


def importance() -> str:
    """Rows of all machines; each with its number of tokens, which decides what compares."""
    lines = [
        "| weights | errors weighed by | bits/weight | ratio | KL, nats | tokens | on |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(FOLDER.glob("importance_*.json"), reverse=True):
        run = json.loads(path.read_text())
        machine = run["device"].partition(",")[0]
        lines += [_line(row, machine) for row in run["rows"]]
    return "\n".join(dict.fromkeys(lines))  # two runs may have had the same row


def _line(row: dict[str, Any], machine: str) -> str:
    digits = 3 if row["ratio"] < 1000 else 0
    cells = [
        _readable(row["name"]),
        _WEIGHED_BY[row["importance"]],
        f"{row['bits_per_weight']:.2f}",
        f"{row['ratio']:,.{digits}f} ± {row['ratio_error']:,.{digits}f}",
        f"{row['divergence']:.3f} ± {row['divergence_error']:.3f}",
        f"{row['tokens']:,}",
        machine,
    ]
    return "| " + " | ".join(cells) + " |"


def _readable(recipe: str) -> str:
    """ "*.v_proj=kbit5,kbit4" -> "KBIT4, `v_proj` KBIT5"."""
    *parts, rest = recipe.split(",")
    named = (part.removeprefix("*.").split("=") for part in parts)
    return ", ".join([rest.upper(), *(f"`{name}` {format.upper()}" for name, format in named)])
