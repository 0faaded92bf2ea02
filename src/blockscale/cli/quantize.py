"""`blockscale quantize`: a checkpoint in, a quantised checkpoint out."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from blockscale.cli.names import (
    DEVICES,
    DIALECTS,
    SCALE_RULES,
    check_name,
    complete,
    complete_format,
    complete_recipe,
)
from blockscale.cli.output import Output
from blockscale.formats import format as find_format

if TYPE_CHECKING:
    from blockscale.checkpoint import ImportanceSource, Plan

AUTO = "auto"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_INTERRUPTED = 130  # as shells have it: 128 and the number of the signal


def quantize(
    out: Output,
    source: Annotated[Path, typer.Argument(help="A folder with config.json and safetensors.")],
    target: Annotated[
        Path, typer.Argument(help="The folder to write; if it exists, it must be empty.")
    ],
    format: Annotated[
        str,
        typer.Option(
            help="Of linear layers; see `blockscale formats`.", autocompletion=complete_format
        ),
    ],
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN=FORMAT",
            help="Another format, or 'keep', for names like '*.down_proj'; repeat as needed: the "
            "first that matches a name counts.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="How block scales are chosen: 'mse' searches the least error, 'absmax' takes each "
            "block's largest value.",
            autocompletion=complete(SCALE_RULES),
        ),
    ] = "mse",
    dialect: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(DIALECTS)}; the first that has the formats by default.",
            autocompletion=complete(DIALECTS),
        ),
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Of each file, such as 2GB or 500MiB.")] = "5GB",
    importance: Annotated[
        str,
        typer.Option(
            metavar="auto|none|FILE",
            help="What errors cost by column, for --scale mse. auto: language models are run once "
            "on random token ids, to measure it; FILE: safetensors, numbers [k] by layer.",
            autocompletion=complete((AUTO, "none")),
        ),
    ] = AUTO,
    device: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cuda|cuda:1",
            help="Where importance is measured. auto: the GPU, where the model fits.",
            autocompletion=complete((AUTO, *DEVICES)),
        ),
    ] = AUTO,
    save_importance: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep what was measured.")
    ] = None,
) -> None:
    """Quantise a checkpoint, tensor by tensor.

    A language model is built once and run on random token ids, to measure what errors cost in each
    column; --importance none leaves that out, and memory is bounded by the largest tensors.

    The work is done in TARGET.partial, which becomes TARGET at the end. If it is interrupted, the
    same command goes on where it stopped. Sources that are quantised already are converted, without
    loss where the formats allow it.
    """
    check_name("--scale", scale, SCALE_RULES)
    if dialect is not None:
        check_name("--dialect", dialect, DIALECTS)
    wanted, size = find_format(format), parse_size(shard_size)

    from blockscale.checkpoint import Settings, parse_rules, plan_conversion
    from blockscale.cli.importance import find_source

    plan = plan_conversion(
        source, Settings(wanted, parse_rules(layers or []), scale, dialect, size)
    )
    for line in _summary(plan):
        out.say(line)
    measured = find_source(plan, importance, device, save_importance, out.say)
    try:
        _run(plan, target, out, measured)
    except KeyboardInterrupt:
        kept = target.with_name(f"{target.name}.partial")
        state = f"finished files are kept in {kept}" if kept.exists() else "no file was finished"
        out.say(f"interrupted: {state}; the same command goes on from there")
        raise typer.Exit(_INTERRUPTED) from None
    facts = _facts(plan, source, target, measured)
    files = "1 file" if facts["files"] == 1 else f"{facts['files']} files"
    out.report(facts, f"wrote {target}: {_size(facts['bytes'])} in {files}")


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.3f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.3f} MB"


def parse_size(text: str) -> int:
    """ "5GB" -> 5 * 10**9, "2GiB" -> 2 * 2**30."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", text.strip().upper())
    if not match or match[2] not in _UNITS or float(match[1]) <= 0:
        raise ValueError(f"--shard-size {text!r}: expected a size such as 5GB or 500MiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _summary(plan: Plan) -> list[str]:
    """What will be done, and what will not, with the reasons."""
    from blockscale.checkpoint import kept_by_reason

    counts = Counter(str(choice.format) for choice in plan.choices.values() if choice.format)
    chosen = ", ".join(f"{count} to {format}" for format, count in counts.items())
    before = sum(unit.nbytes for unit in plan.units)
    lines = [f"{len(plan.choices)} tensors, {_size(before)}: {chosen}, in {plan.writer.NAME} files"]
    return lines + kept_by_reason(plan.choices)


def _facts(
    plan: Plan, source: Path, target: Path, measured: ImportanceSource | None
) -> dict[str, Any]:
    chosen = plan.choices
    return {
        "source": source,
        "target": target,
        "dialect": plan.writer.NAME,
        "scale": plan.settings.scale,
        "importance_source": measured.identity if measured else None,
        "source_bytes": sum(unit.nbytes for unit in plan.units),
        "bytes": sum(shard.nbytes for shard in plan.shards),
        "files": len(plan.shards),
        "quantised": {name: str(each.format) for name, each in chosen.items() if each.format},
        "kept": {
            name: each.reason
            for name, each in chosen.items()
            if not each.format and not each.dropped
        },
        "dropped": {name: each.reason for name, each in chosen.items() if each.dropped},
    }


def _run(plan: Plan, target: Path, out: Output, importance: ImportanceSource | None) -> None:
    from blockscale.checkpoint import run_plan

    columns = (
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[tensors]} of {task.fields[all]} tensors"),
        TimeRemainingColumn(),
    )
    tensors = sum(len(unit.members) for unit in plan.units)
    bar = out.progress(*columns)
    total = sum(unit.nbytes for unit in plan.units)
    task = bar.add_task("", total=total, start=False, tensors=0, all=tensors)

    def progress(size: int, count: int) -> None:
        bar.start()  # not before: while importance is measured, that has a bar of its own
        bar.start_task(task)
        bar.update(task, advance=size, tensors=bar.tasks[task].fields["tensors"] + count)

    try:
        run_plan(plan, target, progress, importance)
    finally:
        bar.stop()
