"""`blockscale eval`: what quantisation does to a model's predictions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from math import isnan
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from blockscale.models import (
    Quality,
    Recipe,
    is_quantized,
    judge,
    load_model,
    load_tokenizer,
    parse_dtype,
    tokenize,
)
from blockscale.nn import measure_importance
from blockscale.runtime import resolve_device

_ORIGINAL = "original"


def evaluate(
    path: Annotated[Path, typer.Argument(help="A model's folder, plain or quantised.")],
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="Judge a quantised copy too: a format, PATTERN=FORMAT parts with commas, '+fit' "
            "after it; repeat as needed."
        ),
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="The unquantised model, where PATH is a quantised one.")
    ] = None,
    x_format: Annotated[
        str | None,
        typer.Option(
            help="What quantised layers quantise their inputs to: a format, or int8. Not at all by "
            "default."
        ),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="A text file; Python's language reference by default.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Of the text.", min=2)] = 20_000,
    window: Annotated[int, typer.Option(help="Tokens that are read together.", min=1)] = 512,
    stride: Annotated[
        int | None, typer.Option(help="By which windows move; their length by default.", min=1)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of what is not quantised; the model's own by default.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Picture to write: .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Perplexity of a model and of quantised copies, and how far their predictions are apart.

    Copies are quantised without data: columns are weighed by inputs measured on random token ids.
    KL is the divergence from the unquantised model's predictions, in nats per token. Weights are
    decoded for each batch of text: the results are those of the kernels up to rounding. With
    --x-format the kernels themselves run.
    """
    recipes = [Recipe.parse(each) for each in format or []]
    if out is not None and out.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"--out: the picture must be .png or .svg, got {out.name!r}")
    ids = tokenize(load_tokenizer(path), text, tokens)
    load = partial(load_model, dtype=parse_dtype(dtype), device=resolve_device(device))
    models, original = _models(path, reference, recipes, x_format, load)
    columns = (
        TextColumn("{task.completed} of {task.total} tokens"),
        BarColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(ids) - 1)
        found = judge(
            models,
            ids,
            reference=original,
            length=window,
            stride=stride,
            on_tokens=lambda count: bar.advance(task, count),
        )
    if as_json:
        typer.echo(json.dumps([asdict(quality) for quality in found], indent=2))
    else:
        Console().print(_table(found, f"{path}, {len(ids) - 1:,} tokens in windows of {window}"))
    if out is not None:
        from blockscale.cli.draw_quality import draw_quality

        draw_quality(found, str(path), out)
        Console(stderr=True).print(f"picture: {out}", markup=False, highlight=False)


def _models(
    path: Path,
    reference: Path | None,
    recipes: list[Recipe],
    x_format: str | None,
    load: Callable[..., Any],
) -> tuple[dict[str, Any], str | None]:
    """Everything that is judged, by name, and the name of the reference."""
    alone = reference is None and not recipes
    first = load(reference or path, x_format=x_format if alone else None)
    if is_quantized(first):
        if reference is not None:
            raise ValueError(f"--reference {reference} is quantised itself")
        if recipes:
            raise ValueError(f"{path} is quantised already: --format needs the unquantised model")
        return {path.name: first}, None
    models = {_ORIGINAL: first}
    if reference is not None:
        models[path.name] = load(path, x_format=x_format)
    importance = measure_importance(first) if recipes else None
    for recipe in recipes:
        models[recipe.text] = recipe.copy_of(first, x_format=x_format, importance=importance)
    return models, _ORIGINAL


def _table(found: list[Quality], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    table.add_column("model", overflow="fold")
    for heading in ("bits/weight", "MB", "perplexity", "ratio", "KL, nats"):
        table.add_column(heading, justify="right", no_wrap=True)
    for quality in found:
        table.add_row(
            quality.name,
            f"{quality.bits_per_weight:.2f}",
            f"{quality.bytes / 1e6:,.1f}",
            _with_error(quality.perplexity, quality.perplexity_error, 2),
            _with_error(quality.ratio, quality.ratio_error, 4),
            _with_error(quality.divergence, quality.divergence_error, 4),
        )
    return table


def _with_error(value: float | None, error: float | None, digits: int) -> str:
    if value is None:
        return ""
    margin = "" if error is None or isnan(error) else f" ± {error:.{digits}f}"
    return f"{value:.{digits}f}{margin}"
