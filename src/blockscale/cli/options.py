"""Options that several commands have: one spelling, one help text, one completion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockscale.cli.names import (
    DEVICES,
    DTYPES,
    complete,
    complete_format,
    complete_recipe,
    complete_x_format,
)

_RECIPE = "a format, PATTERN=FORMAT parts with commas, '+fit' after it"

ModelFolder = Annotated[Path, typer.Argument(help="A model's folder, plain or quantised.")]
QuantisedModel = Annotated[Path, typer.Argument(help="A quantised checkpoint.")]
Device = Annotated[
    str, typer.Option(help="cpu, cuda, cuda:1, ...", autocompletion=complete(DEVICES))
]
Dtype = Annotated[
    str,
    typer.Option(help="Of x and the result: " + ", ".join(DTYPES), autocompletion=complete(DTYPES)),
]
ModelDtype = Annotated[
    str | None,
    typer.Option(
        help="Of what is not quantised; the model's own by default.",
        autocompletion=complete(DTYPES),
    ),
]
WeightFormat = Annotated[
    str, typer.Option(help="Format of the weight.", autocompletion=complete_format)
]
XFormat = Annotated[
    str | None,
    typer.Option(
        help="Format x is quantised to; on CPUs int8 too.", autocompletion=complete_x_format
    ),
]
InputFormat = Annotated[
    str | None,
    typer.Option(
        help="What quantised layers quantise their inputs to: a format, or int8, the fastest on "
        "CPUs. Not at all by default.",
        autocompletion=complete_x_format,
    ),
]
OnLoad = Annotated[
    str | None, typer.Option(help=f"Quantise on load: {_RECIPE}.", autocompletion=complete_recipe)
]
Copies = Annotated[
    list[str] | None,
    typer.Option(
        help=f"Judge a quantised copy too: {_RECIPE}; repeat as needed.",
        autocompletion=complete_recipe,
    ),
]
Jobs = Annotated[int | None, typer.Option(help="Compilations at a time.", min=1)]
Experts = Annotated[int, typer.Option(help="Grouped by so many experts.", min=0)]
Gated = Annotated[bool, typer.Option("--gated", help="act(x @ gate.T) * (x @ up.T).")]
