"""The record in a terminal: what runs where, then a table for each case as it is done."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.results import TIMED, Case, Conversion, Entry, Run
from bench.timing import Spread

_STYLES = {"ours": "bold", "ceiling": "dim"}


def show_start(console: Console, run: Run) -> None:
    machine = run.machine
    sets = " ".join(machine["instruction_sets"]) or "unknown"
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    commit = (run.commit[:12] or "unknown") + (" with changes" if run.dirty else "")
    console.print(f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores")
    console.print(f"instruction sets {sets}\n{versions}\ncommit {commit}, {run.date}")
    if run.device == "cuda":
        flops = machine["product_flops_per_second"] / 1e12
        console.print(
            f"{machine['gpu']}, driver {machine['driver']}, {machine['l2_bytes'] / 1e6:.0f} MB of "
            f"L2, {flops:.0f} TFLOPS in bfloat16"
        )
    console.print(f"native library: {run.settings['native']}", markup=False)
    for name, reason in run.missing.items():
        console.print(f"missing: {name} ({reason})", markup=False)


def show_case(console: Console, case: Case, baseline: str) -> None:
    layers = f"  {', '.join(case.layers)}" if case.layers else ""
    table = Table(title=f"{case.n} x {case.k}, m = {case.m}{layers}", title_justify="left")
    table.add_column("")
    for heading in ("us", "+- %", f"x {baseline}", "% of read", "error"):
        table.add_column(heading, justify="right")
    table.add_column("kernel, or why not")
    for entry in case.entries:
        table.add_row(*_cells(case, entry), style=_STYLES.get(entry.role))
    console.print(table)


def show_summary(console: Console, run: Run) -> None:
    """All cases in few lines: us, times the baseline, and per cent of a read of as many bytes."""
    names: dict[str, None] = {}
    for case in run.cases:
        names.update({e.rival: None for e in case.entries if e.role != "ceiling" and e.time})
    table = Table(title=f"us, x {run.baseline}, % of read", title_justify="left", box=None)
    table.add_column("n x k, m")
    for name in names:
        table.add_column(name, justify="right")
    for case in run.cases:
        cells = [_brief(case, case.entry(name)) for name in names]
        table.add_row(f"{case.n} x {case.k}, {case.m}", *cells)
    console.print(table)


def show_conversions(console: Console, conversions: Sequence[Conversion]) -> None:
    if not conversions:
        return
    first = conversions[0]
    table = Table(title=f"conversions of {first.n} x {first.k}", title_justify="left")
    table.add_column("")
    for heading in ("us", "reference us", "x reference"):
        table.add_column(heading, justify="right")
    table.add_column("kernel, or why not")
    for c in conversions:
        note = c.kernel if c.outcome == TIMED else f"{c.outcome}: {c.reason}"
        table.add_row(c.name, _time(c.time), _time(c.reference), _ratio(c.ratio), note)
    console.print(table)


def _cells(case: Case, entry: Entry) -> list[str]:
    percent = case.percent_of_ceiling(entry)
    return [
        entry.rival,
        _time(entry.time),
        f"{entry.time.percent:.0f}" if entry.time else "",
        _ratio(entry.ratio),
        f"{percent:.0f}" if percent is not None else "",
        f"{entry.error:.1e}" if entry.error is not None else "",
        entry.kernel if entry.outcome == TIMED else f"{entry.outcome}: {entry.reason}",
    ]


def _brief(case: Case, entry: Entry | None) -> str:
    if entry is None:
        return ""
    if not entry.time:
        return entry.outcome
    percent = case.percent_of_ceiling(entry)
    read = f" {percent:.0f}%" if percent is not None else ""
    return f"{entry.time.median:.1f} {_ratio(entry.ratio)}{read}"


def _time(time: Spread | None) -> str:
    return f"{time.median:,.1f}" if time else ""


def _ratio(ratio: Spread | None) -> str:
    return f"{ratio.median:.2f}" if ratio else ""
