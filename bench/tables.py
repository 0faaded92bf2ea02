"""The record in the documentation: markdown from the newest stored run of each CPU.

A number below 1 is a rival that is slower than torch's product, and stands there as it is. Only
the standard library is needed, so that the documentation can be generated anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.problems import layers_of
from bench.results import TIMED, Case, Conversion, Entry, Run, newest_per_machine, stored
from bench.timing import Spread

SPEED_SHAPES = ((14336, 4096), (4096, 4096))  # in the README
SPEED_ROWS = (1, 4, 16, 64)
SPEED_NAMES = ("NVFP4", "NVFP4, int8 x", "KBIT4", "torch int4", "torch kleidiai int4, int8 x")
NOTHING_STORED = (
    "No measurement is stored yet: `make bench` makes one, and `python docs/generate.py` puts it "
    "here."
)
_ABSENT = "-"


def speed() -> str:
    """For the README: a few shapes of each machine."""
    return speed_tables(newest("cpu"))


def performance() -> str:
    """For docs/performance.md: everything."""
    return performance_tables(newest("cpu"))


def newest(device: str) -> list[Run]:
    """The newest stored run of each machine of a kind."""
    return [run for run in newest_per_machine(stored()) if run.device == device]


def speed_tables(runs: Sequence[Run]) -> str:
    wanted = [(shape, m) for shape in SPEED_SHAPES for m in SPEED_ROWS]
    parts = []
    for run in runs:
        found = {(case.shape, case.m): case for case in run.cases}
        cases = [found.get(key) for key in wanted]
        if not any(cases):
            continue
        headings = [f"{n} x {k}, M={m}" if m == SPEED_ROWS[0] else str(m) for (n, k), m in wanted]
        rows = ratio_rows(cases, (*SPEED_NAMES, run.baseline))
        parts += [where(run), markdown([f"times {run.baseline}", *headings], rows)]
    return "\n\n".join(filter(None, parts)) or NOTHING_STORED


def performance_tables(runs: Sequence[Run]) -> str:
    parts = []
    for run in runs:
        parts += [f"### {run.machine['cpu']}, {run.machine['threads']} threads", machine(run)]
        for shape in dict.fromkeys(case.shape for case in run.cases):
            parts.append(
                shape_section([case for case in run.cases if case.shape == shape], run.baseline)
            )
        absent = {**run.missing, **run.skipped}
        beaten = slower(run.cases, run.baseline)
        parts += [conversion_table(run.conversions), beaten, left_out(absent, run.cases)]
    return "\n\n".join(filter(None, parts)) or NOTHING_STORED


def where(run: Run) -> str:
    """Shortly."""
    facts, changed = run.machine, " with changes" if run.dirty else ""
    return (
        f"{facts['cpu']}, {facts['threads']} threads, {run.settings['native']} (commit "
        f"{run.commit[:12] or 'unknown'}{changed}, {run.date[:10]}):"
    )


def machine(run: Run) -> str:
    """One sentence: where, with what, when."""
    facts = run.machine
    software = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    sets = ", ".join(facts["instruction_sets"]) or "unknown"
    changed = " with changes" if run.dirty else ""
    return (
        f"{facts['cpu']} ({facts['architecture']}), {facts['threads']} threads on "
        f"{facts['cores']} cores; instruction sets {sets}; native library "
        f"{run.settings['native']}; {software}; commit {run.commit[:12] or 'unknown'}{changed}, "
        f"{run.date[:10]}."
    )


def shape_section(cases: Sequence[Case], baseline: str) -> str:
    """One shape at every m: ratios, what they are ratios of, and how close to the ceiling."""
    first = cases[0]
    layers = layers_of(*first.shape)
    title = f"#### {first.n} x {first.k}" + (f" ({', '.join(layers)})" if layers else "")
    percents = [_percent(first, first.entry(name)) for name in _names(cases)]
    rows = [[*row, percent] for row, percent in zip(ratio_rows(cases), percents, strict=True)]
    rows.append([f"{baseline}, us", *(_microseconds(case.entry(baseline)) for case in cases), ""])
    headings = [
        f"times {baseline}",
        *(f"M={case.m}" for case in cases),
        f"% of read at M={first.m}",
    ]
    return f"{title}\n\n{markdown(headings, rows)}"


def ratio_rows(cases: Sequence[Case | None], names: Sequence[str] | None = None) -> list[list[str]]:
    """A row for each of ours and of the others, a column for each case; of some names only, in
    their order."""
    rows, there = [], _names(cases)
    for name in there if names is None else [each for each in names if each in there]:
        entries = [case.entry(name) if case else None for case in cases]
        ours = any(entry.role == "ours" for entry in entries if entry)
        rows.append([f"**{name}**" if ours else name, *map(_cell, entries)])
    return rows


def conversion_table(conversions: Sequence[Conversion]) -> str:
    if not conversions:
        return ""
    rows = []
    for c in conversions:
        ratio = f"{c.ratio.median:.2f}" if c.ratio else f"{c.outcome}: {c.reason}"
        rows.append([c.name, c.kernel, _milliseconds(c.time), _milliseconds(c.reference), ratio])
    n, k = conversions[0].n, conversions[0].k
    title = f"Conversions of a {n} x {k} matrix, beside the definition in plain torch:"
    headings = ["", "kernel", "ms", "definition, ms", "times faster"]
    return f"{title}\n\n{markdown(headings, rows)}"


def slower(cases: Iterable[Case], baseline: str) -> str:
    """Where ours lose to torch's product, by name."""
    losses: dict[str, list[str]] = {}
    timed = 0
    for case in cases:
        for entry in case.entries:
            if entry.role != "ours" or not entry.ratio:
                continue
            timed += 1
            if entry.ratio.median < 1:
                where = f"{case.n} x {case.k} at M={case.m} ({entry.ratio.median:.2f})"
                losses.setdefault(entry.rival, []).append(where)
    if not timed:
        return ""
    if not losses:
        return f"None of the {timed} products above is slower than {baseline}."
    count = sum(map(len, losses.values()))
    lines = [f"Slower than {baseline}: {count} of {timed} products.", ""]
    return "\n".join(lines + [f"- {name}: {', '.join(where)}" for name, where in losses.items()])


def left_out(absent: Mapping[str, str], cases: Iterable[Case]) -> str:
    """What the tables have no number for, and why."""
    rows: dict[tuple[str, str], list[int]] = {}
    for case in cases:
        for entry in case.entries:
            if entry.outcome != TIMED:
                reason = entry.reason.rstrip(": ")  # errors without words
                told = f"{entry.rival} on {case.n} x {case.k}", f"{entry.outcome}, {reason}"
                rows.setdefault(told, []).append(case.m)
    failed = {
        f"{name} at M={', '.join(map(str, sorted(every)))}": why
        for (name, why), every in rows.items()
    }
    lines = [f"- {name}: {reason}" for name, reason in {**absent, **failed}.items()]
    return "\n".join(["Not measured:", "", *lines]) if lines else ""


def _names(cases: Iterable[Case | None]) -> list[str]:
    """Everyone in some case, ours first; the plain reads have no row of their own."""
    entries = {e.rival: e for case in cases if case for e in case.entries if e.role != "ceiling"}
    return sorted(entries, key=lambda name: entries[name].role != "ours")


def _cell(entry: Entry | None) -> str:
    if entry is None:
        return _ABSENT
    if entry.outcome != TIMED:
        return entry.outcome
    return f"{entry.ratio.median:.2f}" if entry.ratio else _ABSENT


def _microseconds(entry: Entry | None) -> str:
    return f"{entry.time.median:,.0f}" if entry and entry.time else _ABSENT


def _milliseconds(time: Spread | None) -> str:
    return f"{time.median / 1000:,.1f}" if time else _ABSENT


def _percent(case: Case, entry: Entry | None) -> str:
    percent = case.percent_of_ceiling(entry) if entry else None
    return _ABSENT if percent is None else f"{percent:.0f}"


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])
