"""A later run of the recorded shapes in the documentation: 4-bit formats alone, and the record."""

from __future__ import annotations

from bench.results import BASELINE, FOLDER, Run, load
from bench.tables import markdown

RECHECK = FOLDER / "recheck" / "h200_4_bits.json"
RECORD = FOLDER / "h200.json"
SLOWER = 1.02  # than on record

Cell = tuple[int, int, int, str]  # n, k, m, who


def gpu_recheck() -> str:
    run, times, before = load(RECHECK), _times(load(RECHECK)), _times(load(RECORD))
    ours = [cell for cell in times if cell in before and cell[3] != BASELINE]
    slower = [cell for cell in ours if times[cell] > SLOWER * before[cell]]
    told = ", ".join(
        f"{who} {n} x {k} at M={m} ({times[n, k, m, who]:.1f} us, {before[n, k, m, who]:.1f})"
        for n, k, m, who in slower
    )
    facts = (
        f"Commit {run.commit}, {run.date[:10]}. Of {len(ours)} times {len(slower)} are more than 2%"
        f" above those on record: {told}."
    )
    return f"{_table(run)}\n\n{facts}"


def _times(run: Run) -> dict[Cell, float]:
    return {
        (case.n, case.k, case.m, entry.rival): entry.time.median
        for case in run.cases
        for entry in case.entries
        if entry.time is not None and entry.role != "ceiling"
    }


def _table(run: Run) -> str:
    """Times as fast as torch, a row for each shape and format."""
    ratios = {
        (case.n, case.k, case.m, entry.rival): f"{entry.ratio.median:.2f}"
        for case in run.cases
        for entry in case.entries
        if entry.ratio is not None and entry.role == "ours"
    }
    rows = sorted({case.m for case in run.cases})
    lines = dict.fromkeys((n, k, who) for n, k, _, who in ratios)
    return markdown(
        ["times torch bfloat16", *(f"M={m}" for m in rows)],
        [
            [f"{n} x {k}, {who}", *(ratios.get((n, k, m, who), "-") for m in rows)]
            for n, k, who in lines
        ],
    )
