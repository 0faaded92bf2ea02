"""Whole models on CPUs beside llama.cpp: the records of `bench.model_cpu` in the documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.results import FOLDER as RUNS
from bench.tables import markdown

FOLDER = RUNS / "model"
RIVAL = "llama.cpp"
_SHORT = "optimize_, int8"  # the one that the README shows
NOTHING_STORED = (
    "No whole model is stored yet: `python -m bench.model_cpu --out` makes a record, and "
    "`python docs/generate.py` puts it here."
)

Rates = Mapping[str, Sequence[float]]  # of works, a number for each round


def model_speed() -> str:
    """For the README: times llama.cpp."""
    return speed_table(_raced()) or NOTHING_STORED


def whole_models() -> str:
    """For docs/performance.md: everything, the machine with most threads first."""
    return "\n\n".join(map(race_table, _raced())) or NOTHING_STORED


def _raced() -> list[dict[str, Any]]:
    """Records in which llama.cpp ran."""
    found = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    raced = [each for each in found if any(_rival(run["rates"]) for run in each.get("runs", ()))]
    return sorted(raced, key=lambda each: -max(run["threads"] for run in each["runs"]))


def speed_table(records: Sequence[Mapping[str, Any]]) -> str:
    rows: list[list[str]] = []
    works: list[str] = []
    for record in records:
        for run in record["runs"]:
            rival = _rival(run["rates"])
            ours = next((each for each in run["rates"] if each.endswith(_SHORT)), None)
            if rival is None or ours is None:
                continue
            works = list(run["rates"][ours])
            rates, theirs = run["rates"][ours], run["rates"][rival]
            ratios = [ratio(rates[work], theirs[work]) for work in works]
            where = f"{_cpu(record)}, {run['threads']} threads"
            rows.append([where, *(f"{each:.2f}" for each in ratios)])
    return markdown([f"times {RIVAL} Q4_0", *map(_told, works)], rows) if rows else ""


def race_table(record: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    changed = " with changes" if record["dirty"] else ""
    title = (
        f"{_cpu(record)}, {record['machine']['cores']} cores; {record['shape']['layers']} layers "
        f"of {record['shape']['hidden']} and a vocabulary of {record['shape']['vocabulary']:,}; "
        f"{versions}; commit {record['commit'][:12] or 'unknown'}{changed}, {record['date'][:10]}."
    )
    rows = [
        [str(run["threads"]), name, *(_cell(run["rates"], name, work) for work in rates)]
        for run in record["runs"]
        for name, rates in run["rates"].items()
    ]
    works = next(iter(record["runs"][0]["rates"].values()))
    return f"{title}\n\n{markdown(['threads', 'tokens a second', *map(_told, works)], rows)}"


def _cell(rates: Mapping[str, Rates], name: str, work: str) -> str:
    """The median, and in brackets times llama.cpp's."""
    rate, rival = median(rates[name][work]), _rival(rates)
    told = f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
    if rival is None or rival == name:
        return told
    return f"{told} ({ratio(rates[name][work], rates[rival][work]):.2f})"


def ratio(rates: Sequence[float], reference: Sequence[float]) -> float:
    """Of rounds, in which both had the same machine."""
    return median(mine / theirs for mine, theirs in zip(rates, reference, strict=True))


def _rival(rates: Mapping[str, Rates]) -> str | None:
    return next((name for name in rates if name.startswith(RIVAL)), None)


def _cpu(record: Mapping[str, Any]) -> str:
    """With what tells apart CPUs of one name."""
    sets = record["machine"]["instruction_sets"]
    kind = "AMX" if "amx_int8" in sets else "AVX-512 VNNI" if "avx512_vnni" in sets else ""
    return record["machine"]["cpu"] + (f" with {kind}" if kind else "")


def _told(work: str) -> str:
    """As the tables' headings say it: "prefill 64" is of 64 tokens."""
    kind, _, tokens = work.partition(" ")
    return f"{kind} of {tokens}" if tokens else kind
