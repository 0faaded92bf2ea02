"""`blockscale generate`: let a model write, and see how fast."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import Annotated, Any

import typer

from blockscale.cli.names import DTYPES, check_name, find_x_format
from blockscale.cli.options import Device, InputFormat, ModelDtype, ModelFolder, OnLoad
from blockscale.cli.output import Output
from blockscale.formats import INT8


def generate_text(
    out: Output,
    path: ModelFolder,
    prompt: Annotated[str, typer.Option(help="What the model is asked.")],
    max_tokens: Annotated[int, typer.Option(help="At most so many tokens.", min=1)] = 128,
    format: OnLoad = None,
    x_format: InputFormat = None,
    dtype: ModelDtype = None,
    device: Device = "cpu",
    chat: Annotated[bool, typer.Option(help="Use the tokenizer's chat template.")] = True,
    optimize: Annotated[
        bool,
        typer.Option(
            help="For a quantised model on a CPU: round x to int8, and let a token pass all layers "
            "in one call.",
        ),
    ] = False,
) -> None:
    """Answer a prompt with the likeliest token at each step, as it is written.

    The text goes to standard output and the figures to standard error; with --json, which has both,
    the text goes to standard error as it is written.
    """
    if dtype is not None:
        check_name("--dtype", dtype, DTYPES)
    if find_x_format(x_format) not in (None, INT8) and optimize:
        raise ValueError(f"--optimize rounds x to int8: leave --x-format {x_format} out")

    from blockscale import models
    from blockscale.runtime import resolve_device

    recipe = models.Recipe.parse(format) if format else None
    where = resolve_device(device)
    tokenizer = models.load_tokenizer(path)
    stored_x_format = x_format if recipe is None else None
    model = models.load_model(path, models.parse_dtype(dtype), where, x_format=stored_x_format)
    if recipe:
        if models.is_quantized(model):
            raise ValueError(f"{path} is quantised already: --format needs the unquantised model")
        recipe.apply_(model, x_format=x_format)
    if optimize and not models.is_quantized(model):
        raise ValueError(f"--optimize: {path} is not quantised: add a format, as in --format kbit4")
    if optimize:
        out.note(str(models.optimize_(model, x_format="int8")))
    written = models.generate(model, tokenizer, prompt, max_tokens, chat=chat, on_text=out.write)
    out.write("\n")
    facts = {
        "text": written.text,
        "tokens": len(written.tokens),
        "tokens_per_second": written.tokens_per_second,
        "prompt_tokens": written.prompt_tokens,
        "prompt_seconds": written.prompt_seconds,
        "weight_bytes": models.model_bytes(model),
        "bits_per_weight": models.bits_per_weight(model),
        "peak_memory_bytes": models.peak_memory(where),
    }
    for line in _figures(facts):
        out.note(line)
    out.report(facts)


def _figures(facts: dict[str, Any]) -> Iterator[str]:
    speed = facts["tokens_per_second"]
    rate = "" if isnan(speed) else f", {speed:.1f} a second"  # a single token has none
    yield (
        f"{facts['tokens']} tokens{rate}; "
        f"prompt of {facts['prompt_tokens']} read in {facts['prompt_seconds']:.2f} s"
    )
    yield (
        f"{facts['weight_bytes'] / 1e6:,.1f} MB of weights, {facts['bits_per_weight']:.3g} bits "
        f"each in linear layers; {facts['peak_memory_bytes'] / 1e6:,.0f} MB of memory at most"
    )
