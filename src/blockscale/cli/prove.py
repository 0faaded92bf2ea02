"""`blockscale prove`: whether the kernels of a GPU work on it, one by one.

Kernels prove themselves before their first use anyway. This does it for all of them at once, and
its report, with `--json`, is what to send in for a GPU that the library was never tested on.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from blockscale.cli.names import DEVICES, complete, complete_format
from blockscale.cli.output import Output
from blockscale.formats import CATALOGUE
from blockscale.formats import format as find_format

if TYPE_CHECKING:
    from blockscale.ops import Outcome


def prove(
    out: Output,
    device: Annotated[
        str, typer.Option(help="cuda, cuda:1, ...", autocompletion=complete(DEVICES[1:]))
    ] = "cuda",
    format: Annotated[
        list[str] | None,
        typer.Option(help="Of these formats alone.", autocompletion=complete_format),
    ] = None,
    verb: Annotated[list[str] | None, typer.Option(help="Of these verbs alone.")] = None,
) -> None:
    """Run every kernel of a GPU on known problems, and keep what works there."""
    formats = [find_format(each) for each in format] if format else list(CATALOGUE.values())

    from blockscale import ops
    from blockscale.runtime import describe_device, device_of, resolve_device

    unknown = [each for each in verb or () if each not in ops.VERBS]
    if unknown:
        raise ValueError(f"prove: there is no verb {unknown[0]!r}; use {', '.join(ops.VERBS)}")
    where = resolve_device(device)
    facts = device_of(where)
    if not facts.is_gpu:
        raise ValueError(f"prove: {where} needs no proof: CPU kernels are tested on CPUs")
    listed = ops.to_prove(facts, formats, verb or ops.VERBS)
    outcomes: list[ops.Outcome] = []
    columns = (TextColumn("proving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with out.progress(*columns) as bar:
        task = bar.add_task("", total=len(listed))
        for outcome in ops.prove_all(where, listed):
            outcomes.append(outcome)
            bar.advance(task)
    ops.choose.cache_clear()
    report: dict[str, Any] = {
        "device": describe_device(where),
        "target": facts.arch,
        "sources": ops.source_hash(facts.arch),
        "versions": ops.versions(facts.arch),
        "proofs": outcomes,
    }
    failed = [each for each in outcomes if each.state == "failed"]
    told = f"{report['device']} ({facts.arch}): {len(outcomes)} proofs, {len(failed)} failed"
    out.report(report, told, _table(outcomes), *(_failure(each) for each in failed))


def _table(outcomes: list[Outcome]) -> Table:
    """A line for each verb and kernel."""
    rows: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for each in outcomes:
        rows[each.verb, each.kernel].append(each)
    table = Table(min_width=60)
    for heading in ("verb", "kernel", "proven for", "failed for", "seconds"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    for (verb, kernel), listed in rows.items():
        names = [
            ", ".join(dict.fromkeys(each.format for each in listed if each.state == state))
            for state in ("proven", "failed")
        ]
        table.add_row(verb, kernel, *names, f"{sum(each.seconds for each in listed):.1f}")
    return table


def _failure(outcome: Outcome) -> str:
    operands = f"x {outcome.x}, w {outcome.w}"
    return f"{outcome.verb} by {outcome.kernel} of {operands}: {outcome.failure}"
