"""The records of `bench.decode` in the documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bench.results import FOLDER as RUNS
from bench.tables import markdown

FOLDER = RUNS / "decode"
NOTHING_STORED = (
    "No decoding speed is stored yet: `python -m bench.decode --out` makes a record, and "
    "`python docs/generate.py` puts it here."
)


def decoding() -> str:
    """Small models first."""
    found = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    found.sort(key=lambda run: run["weights"])
    return "\n\n".join(map(decoding_table, found)) or NOTHING_STORED


def decoding_table(run: Mapping[str, Any]) -> str:
    machine, changed = run["machine"], " with changes" if run["dirty"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    title = (
        f"{run['weights'] / 1e6:,.0f} million weights; {machine['cpu']}, {machine['threads']} "
        f"threads on {machine['cores']} cores; native library {run['native']}; {versions}; "
        f"commit {run['commit'][:12] or 'unknown'}{changed}, {run['date'][:10]}."
    )
    headings = ["weights of linear layers", "bits/weight", "MB in all", "tokens/s"]
    headings += [f"times {run['baseline']}", "quartiles"]
    rows = [
        [
            name,
            f"{rival['bits_per_weight']:.2f}",
            f"{rival['bytes'] / 1e6:,.0f}",
            f"{rival['tokens_per_second']['median']:.1f}",
            f"{rival['ratio']['median']:.2f}",
            f"{rival['ratio']['q1']:.2f} to {rival['ratio']['q3']:.2f}",
        ]
        for name, rival in run["rivals"].items()
    ]
    return f"{title}\n\n{markdown(headings, rows)}"
