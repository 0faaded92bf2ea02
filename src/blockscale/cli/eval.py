"""`blockscale eval`: what quantisation does to a model's predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from blockscale.cli.names import DTYPES, check_name, find_x_format
from blockscale.cli.options import Copies, Device, InputFormat, ModelDtype, ModelFolder
from blockscale.cli.output import Output
from blockscale.cli.tables import NamedRows

if TYPE_CHECKING:
    from blockscale.models import Quality, Recipe

_ORIGINAL = "original"
_HEADINGS = ("model", "bits/weight", "MB", "perplexity", "ratio", "KL, nats")


def evaluate(
    out: Output,
    path: ModelFolder,
    format: Copies = None,
    reference: Annotated[
        Path | None, typer.Option(help="The unquantised model, where PATH is a quantised one.")
    ] = None,
    x_format: InputFormat = None,
    text: Annotated[
        Path | None, typer.Option(help="A text file; Python's language reference by default.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Of the text.", min=2)] = 20_000,
    window: Annotated[int, typer.Option(help="Tokens that are read together.", min=1)] = 512,
    stride: Annotated[
        int | None, typer.Option(help="By which windows move; their length by default.", min=1)
    ] = None,
    dtype: ModelDtype = None,
    device: Device = "cpu",
    picture: Annotated[
        Path | None, typer.Option("--out", help="Picture to write: .png or .svg.")
    ] = None,
) -> None:
    """Perplexity of a model and of quantised copies, and how far their predictions are apart.

    Copies are quantised without data: columns are weighed by inputs measured on random token ids.
    KL is the divergence from the unquantised model's predictions, in nats per token. Weights are
    decoded for each batch of text: the results are those of the kernels up to rounding. With
    --x-format the kernels themselves run.
    """
    if picture is not None and picture.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"--out: the picture must be .png or .svg, got {picture.name!r}")
    if picture is not None and not _can_be_folder(picture.parent):
        raise NotADirectoryError(f"--out {picture}: {picture.parent} is no folder")
    if dtype is not None:
        check_name("--dtype", dtype, DTYPES)
    find_x_format(x_format)

    from blockscale import models
    from blockscale.runtime import resolve_device

    recipes = [models.Recipe.parse(each) for each in format or []]
    ids = models.tokenize(models.load_tokenizer(path), text, tokens)
    load = partial(
        models.load_model, dtype=models.parse_dtype(dtype), device=resolve_device(device)
    )
    judged, original = _models(path, reference, recipes, x_format, load)
    columns = TextColumn("{task.completed} of {task.total} tokens"), BarColumn()
    with out.progress(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=len(ids) - 1)
        found = models.judge(
            judged,
            ids,
            reference=original,
            length=window,
            stride=stride,
            on_tokens=lambda count: bar.advance(task, count),
        )
    title = f"{path}, {len(ids) - 1:,} tokens in windows of {window}"
    out.report(found, _table(found, title))
    if picture is not None:
        from blockscale.cli.draw_quality import draw_quality

        draw_quality(found, str(path), picture)
        out.note(f"picture: {picture}")


def _models(
    path: Path,
    reference: Path | None,
    recipes: list[Recipe],
    x_format: str | None,
    load: Callable[..., Any],
) -> tuple[dict[str, Any], str | None]:
    """Everything that is judged, by name, and the name of the reference."""
    from blockscale.models import is_quantized
    from blockscale.nn import measure_importance

    alone = reference is None and not recipes
    first = load(reference or path, x_format=x_format if alone else None)
    if is_quantized(first):
        if reference is not None:
            raise ValueError(f"--reference {reference} is quantised itself")
        if recipes:
            raise ValueError(f"{path} is quantised already: --format needs the unquantised model")
        return {_name(path): first}, None
    models = {_ORIGINAL: first}
    if reference is not None:
        others = _ORIGINAL, *(recipe.text for recipe in recipes)
        models[_name(path, *others)] = load(path, x_format=x_format)
    importance = measure_importance(first) if recipes else None
    for recipe in recipes:
        models[recipe.text] = recipe.copy_of(first, x_format=x_format, importance=importance)
    return models, _ORIGINAL


def _name(path: Path, *others: str) -> str:
    """Of a folder, short; in full where it has the name of another model."""
    whole = path.resolve() if ".." in path.parts else path.absolute()  # "." has no name
    return str(whole) if whole.name in ("", *others) else whole.name


def _table(found: Sequence[Quality], title: str) -> NamedRows:
    table = NamedRows(title, _HEADINGS)
    for quality in found:
        table.add(
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


def _can_be_folder(path: Path) -> bool:
    """Whether it is one, or can be made; hours of work may come before it is written to."""
    return path.is_dir() or (not path.exists() and _can_be_folder(path.parent))
