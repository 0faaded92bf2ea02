"""`blockscale generate`: let a model write, and see how fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from blockscale.models import (
    Recipe,
    bits_per_weight,
    generate,
    is_quantized,
    load_model,
    load_tokenizer,
    model_bytes,
    parse_dtype,
    peak_memory,
)
from blockscale.runtime import resolve_device


def generate_text(
    path: Annotated[Path, typer.Argument(help="A model's folder, plain or quantised.")],
    prompt: Annotated[str, typer.Option(help="What the model is asked.")],
    max_tokens: Annotated[int, typer.Option(help="At most so many tokens.", min=1)] = 128,
    format: Annotated[
        str | None,
        typer.Option(
            help="Quantise on load: a format, PATTERN=FORMAT parts with commas, '+fit' after it."
        ),
    ] = None,
    x_format: Annotated[
        str | None,
        typer.Option(
            help="What quantised layers quantise their inputs to: a format, or int8, the fastest "
            "on CPUs. Not at all by default."
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of what is not quantised; the model's own by default.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    chat: Annotated[bool, typer.Option(help="Use the tokenizer's chat template.")] = True,
) -> None:
    """Answer a prompt with the likeliest token at each step, as it is written."""
    recipe = Recipe.parse(format) if format else None
    where = resolve_device(device)
    tokenizer = load_tokenizer(path)
    stored_x_format = x_format if recipe is None else None
    model = load_model(path, parse_dtype(dtype), where, x_format=stored_x_format)
    if recipe:
        if is_quantized(model):
            raise ValueError(f"{path} is quantised already: --format needs the unquantised model")
        recipe.apply_(model, x_format=x_format)
    written = generate(model, tokenizer, prompt, max_tokens, chat=chat, on_text=_show)
    typer.echo()
    report = Console(stderr=True, soft_wrap=True, highlight=False)
    report.print(
        f"{len(written.tokens)} tokens, {written.tokens_per_second:.1f} a second; "
        f"prompt of {written.prompt_tokens} read in {written.prompt_seconds:.2f} s"
    )
    report.print(
        f"{model_bytes(model) / 1e6:,.1f} MB of weights, {bits_per_weight(model):.3g} bits each in "
        f"linear layers; {peak_memory(where) / 1e6:,.0f} MB of memory at most"
    )


def _show(piece: str) -> None:
    typer.echo(piece, nl=False)
