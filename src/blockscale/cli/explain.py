"""`blockscale explain`: which kernel a product would run on, and the least it could cost."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from blockscale import ops
from blockscale.formats import activation_format
from blockscale.formats import format as find_format
from blockscale.layouts import canonical
from blockscale.problem import Kind, Problem
from blockscale.runtime import resolve_device, target_of

_DTYPES = ("float32", "bfloat16", "float16")


def explain(
    m: Annotated[int, typer.Argument(help="Rows of x.", min=0)],
    n: Annotated[int, typer.Argument(help="Rows of the weight.", min=1)],
    k: Annotated[int, typer.Argument(help="Columns of both.", min=1)],
    format: Annotated[str, typer.Option(help="Format of the weight.")] = "nvfp4",
    x_format: Annotated[
        str | None, typer.Option(help="Format x is quantised to; on CPUs int8 too.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Of x and the result: " + ", ".join(_DTYPES))
    ] = "bfloat16",
    gated: Annotated[bool, typer.Option("--gated", help="act(x @ gate.T) * (x @ up.T).")] = False,
    experts: Annotated[int, typer.Option(help="Grouped by so many experts.", min=0)] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
) -> None:
    """Explain x [m, k] @ w [n, k].T: bytes, flops, floor, and every kernel's answer."""
    if dtype not in _DTYPES:
        raise ValueError(f"--dtype {dtype}: use one of {', '.join(_DTYPES)}")
    weight = find_format(format)
    where = resolve_device(device)
    if where.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: there are no kernels for {where.type}")
    ops.check_block("explain", "w", k, weight)
    x = dtype
    if x_format is not None:
        quantized = activation_format(x_format)
        ops.check_block("explain", "x", k, quantized)
        x = str(Kind(quantized, canonical(quantized)))
    verb = f"{'grouped_' if experts else ''}{'gated_' if gated else ''}matmul"
    problem = Problem(
        verb=verb,
        m=m,
        n=n,
        k=k,
        groups=experts or 1,
        ragged=bool(experts),
        gated=gated,
        activation="silu" if gated else "",
        x=x,
        w=str(Kind(weight, ops.prepared_layout(weight, target_of(where)))),
        out=dtype,
        target=target_of(where),
    )
    Console(soft_wrap=True).print(str(ops.explain(problem, where)), markup=False, highlight=False)
