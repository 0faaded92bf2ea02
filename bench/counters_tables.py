"""The record of `bench.counters` in the documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bench.results import FOLDER as RUNS
from bench.tables import markdown

FOLDER = RUNS / "counters"
NOTHING_STORED = (
    "No counts are stored yet: `python -m bench.counters` makes them, and "
    "`python docs/generate.py` puts them here."
)


def gpu_counters() -> str:
    found = [json.loads(path.read_text()) for path in FOLDER.glob("*.json")]
    newest = max(found, key=lambda report: report["date"], default=None)
    return counters_table(newest) if newest else NOTHING_STORED


def counters_table(report: Mapping[str, Any]) -> str:
    changed = " with changes" if report["dirty"] else ""
    commit = report["commit"][:12] or "unknown"
    where = f"{report['machine']['gpu']}; commit {commit}{changed}, {report['date'][:10]}."
    headings = ["n x k", "format", "M", "MB read", "GB/s", "L2 hits, %"]
    headings += ["issue slots, %", "tensor cores, %", "registers"]
    rows = [
        [
            f"{line['n']} x {line['k']}",
            line["format"].upper(),
            str(line["m"]),
            f"{line['read_MB']:.1f}",
            f"{line['read_MB'] / line['us'] * 1e3:,.0f}",
            f"{line['L2_hit_percent']:.0f}",
            f"{line['issue_percent']:.0f}",
            f"{line['tensor_percent']:.0f}",
            f"{line['registers']:.0f}",
        ]
        for line in report["products"]
    ]
    return f"{where}\n\n{markdown(headings, rows)}"
