"""`blockscale warmup`: compile the CUDA kernels of a model before it runs.

The first call of a kernel compiles it, which takes seconds and is not possible while a CUDA graph
is captured. With `--target` this needs no GPU, so an image can be built with its kernels in it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from blockscale import ops
from blockscale.checkpoint import Checkpoint
from blockscale.cli.products import DTYPES, Products, parse_dtype, parse_rows
from blockscale.numerics import parse_activation
from blockscale.problem import Problem
from blockscale.runtime import resolve_device, target_of
from blockscale.runtime.cuda import Build, compile_all, cuda_refusal, is_cached, open_cache


def warmup(
    path: Annotated[Path, typer.Argument(help="A quantised checkpoint.")],
    device: Annotated[str, typer.Option(help="cuda, cuda:1, ...")] = "cuda",
    target: Annotated[
        str | None, typer.Option(help="Instead of a device: sm_90, sm_120, ...; needs no GPU.")
    ] = None,
    rows: Annotated[str, typer.Option(help="Rows of x to be ready for.")] = "1,2,4,8,16,32,64",
    dtype: Annotated[
        str, typer.Option(help="Of x and the result: " + ", ".join(DTYPES))
    ] = "bfloat16",
    activation: Annotated[str, typer.Option(help="Of gated experts.")] = "silu",
    jobs: Annotated[int | None, typer.Option(help="Compilations at a time.", min=1)] = None,
) -> None:
    """Compile what a model's layers will run on, and keep it on the disk."""
    parse_dtype(dtype)
    where = target or target_of(resolve_device(device))
    refusal = cuda_refusal(where)
    if refusal is not None:
        raise RuntimeError(f"warmup for {where}: {refusal}")
    kept = open_cache()
    if kept is None:
        raise RuntimeError("compiled kernels are not kept: see BLOCKSCALE_CACHE in doctor")
    products = Products(parse_rows(rows), dtype, str(parse_activation(activation)), where)
    problems = products.of(Checkpoint(path))
    if not problems:
        raise ValueError(f"{path} holds no quantised weights")
    builds = list(dict.fromkeys(build for problem in problems for build in ops.builds(problem)))
    missing = [build for build in builds if not is_cached(build, where)]
    seconds = _compile(missing, where, jobs)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{len(problems)} products on {where}: {_kernels(problems)}", markup=False)
    console.print(
        f"{len(builds)} kernels in {kept.folder}: {len(missing)} compiled in {seconds:.1f} s, "
        f"{len(builds) - len(missing)} there before",
        markup=False,
    )


def _kernels(problems: list[Problem]) -> str:
    """Which kernels run them: a fallback is not passed over in silence."""
    names = [ops.choose(problem).kernel.NAME for problem in problems]
    return ", ".join(f"{names.count(name)} by {name}" for name in dict.fromkeys(names))


def _compile(builds: list[Build], target: str, jobs: int | None) -> float:
    """Seconds that it took."""
    start = time.perf_counter()
    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(builds))
        for _, error in compile_all(builds, target, jobs):
            if error is not None:
                raise error
            bar.advance(task)
    return time.perf_counter() - start
