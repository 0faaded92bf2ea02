"""`blockscale tune`: measure which kernels and configs are the fastest on this machine.

For the products of a model, or for shapes; what is found is kept, and used by every process from
then on. `blockscale explain` says where.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockscale.cli.names import (
    ACTIVATIONS,
    DEVICES,
    DTYPES,
    check_name,
    complete,
    complete_format,
    find_x_format,
)
from blockscale.cli.options import Dtype, Jobs, XFormat
from blockscale.cli.output import Output
from blockscale.cli.sizes import parse_rows, parse_shape
from blockscale.formats import format as find_format


def tune(
    out: Output,
    model: Annotated[Path | None, typer.Argument(help="A quantised checkpoint.")] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Instead: n x k of a weight, as in 14336x4096.")
    ] = None,
    format: Annotated[
        str, typer.Option(help="Of the weights of --shape.", autocompletion=complete_format)
    ] = "nvfp4",
    gated: Annotated[bool, typer.Option("--gated", help="With --shape: gate and up.")] = False,
    experts: Annotated[int, typer.Option(help="With --shape: grouped by so many.", min=0)] = 0,
    rows: Annotated[str, typer.Option(help="Rows of x to tune for.")] = "1,2,4,8,16,32,64",
    dtype: Dtype = "bfloat16",
    x_format: XFormat = None,
    activation: Annotated[
        str, typer.Option(help="Of gated products.", autocompletion=complete(ACTIVATIONS))
    ] = "silu",
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu, cuda, cuda:1, ...; a GPU if there is one.",
            autocompletion=complete(DEVICES),
        ),
    ] = None,
    jobs: Jobs = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Every candidate's time.")] = False,
    shown: Annotated[bool, typer.Option("--show", help="Show what is kept.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Remove what is kept.")] = False,
) -> None:
    """Time every way to run some products here, and keep the fastest."""
    if [model is not None, bool(shape), shown, clear].count(True) != 1:
        raise ValueError("tune: give one of a checkpoint, --shape, --show and --clear")
    check_name("--dtype", dtype, DTYPES)
    weight, x, sizes = find_format(format), find_x_format(x_format), parse_rows(rows)
    shapes = [parse_shape(each) for each in shape or []]

    from blockscale.cli import tuned, tuning
    from blockscale.cli.products import with_x
    from blockscale.numerics import parse_activation

    if clear:
        tuning.clear(out)
        return
    if shown:
        kept = tuned.kept()
        out.report({**tuned.facts(), "results": kept}, *tuned.shown(kept))
        return
    where = tuning.device_or_best(device)
    products = tuning.products_on(where, sizes, dtype, str(parse_activation(activation)))
    if model is not None:
        problems = tuning.of_model(products, model)
    else:
        problems = tuning.of_shapes(products, shapes, weight, gated, experts)
    tuning.tune_all(out, with_x(problems, x, "tune"), where, jobs, verbose)
