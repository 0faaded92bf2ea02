"""The record of `bench.verbs` in the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from bench.measurements import Measurement, Report, newest_of_each_work, works
from bench.results import TIMED
from bench.tables import markdown
from bench.timing import Spread

NOTHING_STORED = (
    "No measurement of the other verbs on a GPU is stored yet: `python -m bench.verbs` makes one, "
    "and `python docs/generate.py` puts it here."
)


def gpu_verbs() -> str:
    return verbs_tables(newest_of_each_work())


def verbs_tables(reports: Sequence[Report]) -> str:
    parts = []
    for report in reports:
        changed = " with changes" if report.dirty else ""
        where = f"{report.machine['gpu']}, driver {report.machine['driver']}"
        commit = report.commit[:12] or "unknown"
        told = f"{where}; commit {commit}{changed}, {report.date[:10]}"
        for work, lines in works(report.measurements).items():
            parts += [f"**{work}** ({told})", _table(lines)]
    return "\n\n".join(parts) or NOTHING_STORED


def _table(lines: Sequence[Measurement]) -> str:
    """Columns that nobody fills are left out."""
    beside = next((line.beside for line in lines if line.beside), "")
    columns = {
        "": [line.problem for line in lines],
        "who": [line.name for line in lines],
        "us": [_time(line.time) if line.outcome == TIMED else line.outcome for line in lines],
        f"{beside}, us": [_time(line.other) for line in lines],
        f"times {beside}": [f"{line.ratio.median:.2f}" if line.ratio else "" for line in lines],
        "plain read, us": [_time(line.floor) if beside != "read" else "" for line in lines],
        "why not": [line.reason for line in lines],
    }
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    return markdown(list(filled), zip(*filled.values(), strict=True))


def _time(time: Spread | None) -> str:
    return f"{time.median:.1f}" if time else ""
