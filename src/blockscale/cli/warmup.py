"""`blockscale warmup`: compile the CUDA kernels of a model before it runs.

The first call of a kernel compiles it, which takes seconds and is not possible while a CUDA graph
is captured. With `--target` this needs no GPU, so an image can be built with its kernels in it.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from blockscale.cli.names import ACTIVATIONS, DEVICES, DTYPES, TARGETS, check_name, complete
from blockscale.cli.options import Dtype, Jobs, QuantisedModel
from blockscale.cli.output import Output
from blockscale.cli.sizes import parse_rows

if TYPE_CHECKING:
    from blockscale.problem import Problem
    from blockscale.runtime.cuda import Build


def warmup(
    out: Output,
    path: QuantisedModel,
    device: Annotated[
        str, typer.Option(help="cuda, cuda:1, ...", autocompletion=complete(DEVICES[1:]))
    ] = "cuda",
    target: Annotated[
        str | None,
        typer.Option(
            help="Instead of a device: sm_90, sm_120, ...; needs no GPU.",
            autocompletion=complete(TARGETS),
        ),
    ] = None,
    rows: Annotated[str, typer.Option(help="Rows of x to be ready for.")] = "1,2,4,8,16,32,64",
    dtype: Dtype = "bfloat16",
    activation: Annotated[
        str, typer.Option(help="Of gated experts.", autocompletion=complete(ACTIVATIONS))
    ] = "silu",
    jobs: Jobs = None,
) -> None:
    """Compile what a model's layers will run on, and keep it on the disk."""
    check_name("--dtype", dtype, DTYPES)
    sizes = parse_rows(rows)

    from blockscale import ops
    from blockscale.checkpoint import Checkpoint
    from blockscale.cli.products import Products
    from blockscale.numerics import parse_activation
    from blockscale.runtime import device_of, gpu, resolve_device
    from blockscale.runtime.cuda import cuda_refusal, is_cached, open_cache

    # Of a GPU that is not here, the compiler must be.
    asked = None if target is None else replace(gpu(target), live=True)
    where = asked or device_of(resolve_device(device))
    products = Products(sizes, dtype, str(parse_activation(activation)), where)
    problems = products.of(Checkpoint(path))
    if not problems:
        raise ValueError(f"{path} holds no quantised weights")
    refusal = cuda_refusal(where)
    if refusal is not None:
        raise RuntimeError(f"warmup for {where.arch}: {refusal}")
    kept = open_cache()
    if kept is None:
        raise RuntimeError("compiled kernels are not kept: see BLOCKSCALE_CACHE in doctor")
    builds = list(dict.fromkeys(build for problem in problems for build in ops.builds(problem)))
    missing = [build for build in builds if not is_cached(build, where.arch)]
    facts: dict[str, Any] = {
        "target": where.arch,
        "products": len(problems),
        "kernels": _kernels(problems),
        "folder": kept.folder,
        "builds": len(builds),
        "compiled": len(missing),
        "seconds": _compile(out, missing, where.arch, jobs),
    }
    by = ", ".join(f"{count} by {name}" for name, count in facts["kernels"].items())
    out.report(
        facts,
        f"{len(problems)} products on {where.arch}: {by}",
        f"{len(builds)} kernels in {kept.folder}: {len(missing)} compiled in "
        f"{facts['seconds']:.1f} s, {len(builds) - len(missing)} there before",
    )


def _kernels(problems: list[Problem]) -> dict[str, int]:
    """How many each kernel runs: a fallback is not passed over in silence."""
    from blockscale import ops

    return dict(Counter(ops.choose(problem).kernel.NAME for problem in problems))


def _compile(out: Output, builds: list[Build], target: str, jobs: int | None) -> float:
    """Seconds that it took."""
    from blockscale.runtime.cuda import compile_all

    start = time.perf_counter()
    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with out.progress(*columns) as bar:
        task = bar.add_task("", total=len(builds))
        for _, error in compile_all(builds, target, jobs):
            if error is not None:
                raise error
            bar.advance(task)
    return time.perf_counter() - start
