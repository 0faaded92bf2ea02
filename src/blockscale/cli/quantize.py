"""`blockscale quantize`: a checkpoint in, a quantised checkpoint out."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from blockscale.checkpoint import (
    WRITABLE,
    ImportanceSource,
    Plan,
    Settings,
    parse_rules,
    plan_conversion,
    run_plan,
)
from blockscale.cli.importance import AUTO, find_source
from blockscale.formats import format as find_format

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_MOST_NAMES = 4  # of the tensors kept for one reason


def quantize(
    source: Annotated[Path, typer.Argument(help="A folder with config.json and safetensors.")],
    target: Annotated[Path, typer.Argument(help="The folder to write; it must not exist yet.")],
    format: Annotated[str, typer.Option(help="Of linear layers; see `blockscale formats`.")],
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN=FORMAT",
            help="Another format, or 'keep', for names like '*.down_proj'; repeat as needed.",
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="How block scales are chosen; 'mse' searches.")
    ] = "absmax",
    dialect: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(WRITABLE)}; the first that has the formats by default."
        ),
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Of each file, such as 2GB or 500MiB.")] = "5GB",
    importance: Annotated[
        str,
        typer.Option(
            metavar="auto|none|FILE",
            help="What errors cost by column, with --scale mse. auto: language models are run once "
            "on random token ids, to measure it; FILE: safetensors, numbers [k] by layer.",
        ),
    ] = AUTO,
    device: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cuda|cuda:1",
            help="Where importance is measured. auto: the GPU, where the model fits.",
        ),
    ] = AUTO,
    save_importance: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep what was measured.")
    ] = None,
) -> None:
    """Quantise a checkpoint, tensor by tensor.

    The model is built only to measure the importance of columns, by --importance auto with --scale
    mse; otherwise memory is bounded by the largest tensors.

    The work is done in TARGET.partial, which becomes TARGET at the end. If it is interrupted, the
    same command goes on where it stopped. Sources that are quantised already are converted, without
    loss where the formats allow it.
    """
    settings = Settings(
        find_format(format),
        parse_rules(layers or []),
        scale,
        dialect,
        parse_size(shard_size),
    )
    plan = plan_conversion(source, settings)
    console = Console(soft_wrap=True, highlight=False)
    for line in _summary(plan):
        console.print(line, markup=False)
    measured = find_source(
        plan, importance, device, save_importance, lambda line: console.print(line, markup=False)
    )
    _run(plan, target, console, measured)
    written = sum(shard.nbytes for shard in plan.shards)
    files = "1 file" if len(plan.shards) == 1 else f"{len(plan.shards)} files"
    console.print(f"wrote {target}: {written / 1e9:.3f} GB in {files}", markup=False)


def parse_size(text: str) -> int:
    """ "5GB" -> 5 * 10**9, "2GiB" -> 2 * 2**30."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", text.strip().upper())
    if not match or match[2] not in _UNITS or float(match[1]) <= 0:
        raise ValueError(f"--shard-size {text!r}: expected a size such as 5GB or 500MiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _summary(plan: Plan) -> list[str]:
    """What will be done, and what will not, with the reasons."""
    counts = Counter(str(choice.format) for choice in plan.choices.values() if choice.format)
    chosen = ", ".join(f"{count} to {format}" for format, count in counts.items())
    before = sum(unit.nbytes for unit in plan.units)
    lines = [
        f"{len(plan.choices)} tensors, {before / 1e9:.3f} GB: {chosen}, in {plan.writer.NAME} files"
    ]
    reasons: dict[str, list[str]] = {}
    for name, choice in plan.choices.items():
        if choice.reason:
            label = "dropped" if choice.dropped else "kept"
            reasons.setdefault(f"{label}, {choice.reason}", []).append(name)
    for reason, names in reasons.items():
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        lines.append(f"{reason}: {', '.join(names[:_MOST_NAMES])}{more}")
    return lines


def _run(plan: Plan, target: Path, console: Console, importance: ImportanceSource | None) -> None:
    columns = (
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[tensors]} of {task.fields[all]} tensors"),
        TimeRemainingColumn(),
    )
    tensors = sum(len(unit.members) for unit in plan.units)
    with Progress(*columns, console=console) as bar:
        total = sum(unit.nbytes for unit in plan.units)
        task = bar.add_task("", total=total, tensors=0, all=tensors)

        def progress(size: int, count: int) -> None:
            bar.update(task, advance=size, tensors=bar.tasks[task].fields["tensors"] + count)

        run_plan(plan, target, progress, importance)
