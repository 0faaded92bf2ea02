"""`blockscale tune`: measure which kernels and configs are the fastest on this machine.

For the products of a model, or for shapes; what is found is kept, and used by every process from
then on. `blockscale explain` says where.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from blockscale import ops
from blockscale.checkpoint import Checkpoint
from blockscale.cli.products import DTYPES, Products, parse_dtype, parse_rows
from blockscale.cli.tuned import show
from blockscale.formats import activation_format
from blockscale.formats import format as find_format
from blockscale.layouts import canonical
from blockscale.numerics import parse_activation
from blockscale.problem import Kind, Problem
from blockscale.runtime import resolve_device, target_of, tuned

_SHAPE = re.compile(r"(\d+)x(\d+)")


def tune(
    model: Annotated[Path | None, typer.Argument(help="A quantised checkpoint.")] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Instead: n x k of a weight, as in 14336x4096.")
    ] = None,
    format: Annotated[str, typer.Option(help="Of the weights of --shape.")] = "nvfp4",
    gated: Annotated[bool, typer.Option("--gated", help="With --shape: gate and up.")] = False,
    experts: Annotated[int, typer.Option(help="With --shape: grouped by so many.", min=0)] = 0,
    rows: Annotated[str, typer.Option(help="Rows of x to tune for.")] = "1,2,4,8,16,32,64",
    dtype: Annotated[
        str, typer.Option(help="Of x and the result: " + ", ".join(DTYPES))
    ] = "bfloat16",
    x_format: Annotated[
        str | None, typer.Option(help="Format x is quantised to; on CPUs int8 too.")
    ] = None,
    activation: Annotated[str, typer.Option(help="Of gated products.")] = "silu",
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU if there is one.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Compilations at a time.", min=1)] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Every candidate's time.")] = False,
    shown: Annotated[bool, typer.Option("--show", help="Show what is kept.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Remove what is kept.")] = False,
) -> None:
    """Time every way to run some products here, and keep the fastest."""
    if [model is not None, bool(shape), shown, clear].count(True) != 1:
        raise ValueError("tune: give one of a checkpoint, --shape, --show and --clear")
    console = Console(soft_wrap=True, highlight=False)
    if clear:
        console.print(f"removed {tuned.clear()} results", markup=False)
        return
    if shown:
        show(console)
        return
    where = resolve_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    known = str(parse_activation(activation))
    products = Products(parse_rows(rows), parse_dtype(dtype), known, target_of(where))
    if model is not None:
        problems = products.of(Checkpoint(model))
        if not problems:
            raise ValueError(f"{model} holds no quantised weights")
    else:
        problems = _of_shapes(products, shape or [], format, gated, experts)
    _tune_all(console, _with_x(problems, x_format), where, jobs, verbose)


def _of_shapes(
    products: Products, shapes: list[str], format: str, gated: bool, experts: int
) -> list[Problem]:
    weight, found = find_format(format), []
    for text in shapes:
        match = _SHAPE.fullmatch(text.replace(" ", ""))
        n, k = (int(match[1]), int(match[2])) if match else (0, 0)
        if not (n and k):
            raise ValueError(f"--shape {text!r}: give n x k of a weight, as in 14336x4096")
        ops.check_block("tune", "w", k, weight)
        found += [
            products.problem((m, n, k), experts, weight, gated, bias=False) for m in products.rows
        ]
    return list(dict.fromkeys(found))


def _with_x(problems: list[Problem], x_format: str | None) -> list[Problem]:
    if x_format is None:
        return problems
    format = activation_format(x_format)
    for problem in problems:
        ops.check_block("tune", "x", problem.k, format)
    return [replace(problem, x=str(Kind(format, canonical(format)))) for problem in problems]


def _tune_all(
    console: Console,
    problems: list[Problem],
    device: torch.device,
    jobs: int | None,
    verbose: bool,
) -> None:
    found = []
    for number, problem in enumerate(problems, 1):
        with _progress(f"product {number} of {len(problems)}") as progress:
            found.append(ops.tune(problem, device, jobs=jobs, progress=progress))
        console.print(str(found[-1]) if verbose else _line(found[-1]), markup=False)
    wins = sum(each.wins for each in found)
    console.print(f"{len(found)} products on {found[0].device}: {wins} run faster", markup=False)
    for path in dict.fromkeys(str(each.path) for each in found if each.path is not None):
        console.print(f"kept in {path}", markup=False)


def _line(found: ops.Tuning) -> str:
    problem, left_out = found.problem, sum(bool(trial.left_out) for trial in found.trials)
    size = f"m={problem.m} n={problem.n} k={problem.k}"
    groups = f" experts={problem.groups}" if problem.ragged else ""
    gone = f" ({left_out} left out: --verbose says why)" if left_out else ""
    return f"{problem.verb} {size}{groups}, w {problem.w}: {found.verdict}{gone}"


@contextmanager
def _progress(product: str) -> Iterator[Callable[[str, int, int], object]]:
    """A bar on standard error, gone before anything is printed: what to call meanwhile."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(product, total=None)

        def report(doing: str, done: int, whole: int) -> None:
            bar.update(task, description=f"{product}, {doing}", completed=done, total=whole)

        yield report
