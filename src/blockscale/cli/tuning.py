"""The work of `blockscale tune`: products in, the fastest way to run each of them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from blockscale import ops
from blockscale.checkpoint import Checkpoint
from blockscale.cli.output import Output
from blockscale.cli.products import Products
from blockscale.formats import Format
from blockscale.problem import Problem
from blockscale.runtime import device_of, resolve_device, tuned


def clear(out: Output) -> None:
    count = tuned.clear()
    out.report({"removed": count}, f"removed {count} results")


def device_or_best(name: str | None) -> torch.device:
    return resolve_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def products_on(
    device: torch.device, rows: tuple[int, ...], dtype: str, activation: str
) -> Products:
    return Products(rows, dtype, activation, device_of(device))


def of_model(products: Products, model: Path) -> list[Problem]:
    problems = products.of(Checkpoint(model))
    if not problems:
        raise ValueError(f"{model} holds no quantised weights")
    return problems


def of_shapes(
    products: Products,
    shapes: Sequence[tuple[int, int]],
    weight: Format,
    gated: bool,
    experts: int,
) -> list[Problem]:
    found = []
    for n, k in shapes:
        ops.check_block("tune", "w", k, weight)
        found += [
            products.problem((m, n, k), experts, weight, gated, bias=False) for m in products.rows
        ]
    return list(dict.fromkeys(found))


def tune_all(
    out: Output, problems: list[Problem], device: torch.device, jobs: int | None, verbose: bool
) -> None:
    found = []
    for number, problem in enumerate(problems, 1):
        with _progress(out, f"product {number} of {len(problems)}") as progress:
            found.append(ops.tune(problem, device, jobs=jobs, progress=progress))
        out.say(str(found[-1]) if verbose else _line(found[-1]))
    wins = sum(each.wins for each in found)
    paths = list(dict.fromkeys(str(each.path) for each in found if each.path is not None))
    facts = {
        "device": found[0].device,
        "faster": wins,
        "kept_in": paths,
        "products": [_facts(each) for each in found],
    }
    ending = f"{len(found)} products on {found[0].device}: {wins} run faster"
    out.report(facts, ending, *(f"kept in {path}" for path in paths))


def _facts(found: ops.Tuning) -> dict[str, Any]:
    problem = found.problem
    return {
        "problem": {each.name: getattr(problem, each.name) for each in fields(problem)},
        "gain": found.gain,
        "wins": found.wins,
        "rule": str(found.rule.candidate),
        "best": str(found.best.candidate),
        "trials": [
            {
                "candidate": str(trial.candidate),
                "seconds": trial.seconds,
                "left_out": trial.left_out or None,
            }
            for trial in found.trials
        ],
    }


def _line(found: ops.Tuning) -> str:
    problem, left_out = found.problem, sum(bool(trial.left_out) for trial in found.trials)
    size = f"m={problem.m} n={problem.n} k={problem.k}"
    groups = f" experts={problem.groups}" if problem.ragged else ""
    gone = f" ({left_out} left out: --verbose says why)" if left_out else ""
    return f"{problem.verb} {size}{groups}, w {problem.w}: {found.verdict}{gone}"


@contextmanager
def _progress(out: Output, product: str) -> Iterator[Callable[[str, int, int], object]]:
    """A bar on standard error, gone before anything is printed: what to call meanwhile."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with out.progress(*columns) as bar:
        task = bar.add_task(product, total=None)

        def report(doing: str, done: int, whole: int) -> None:
            bar.update(task, description=f"{product}, {doing}", completed=done, total=whole)

        yield report
