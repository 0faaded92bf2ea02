"""Measure every candidate of a problem on this device, and remember the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date

import torch
from torch import Tensor

from blockscale.ops.choose import choose
from blockscale.ops.tuning.contest import Clock, Contest, Progress
from blockscale.ops.tuning.report import Trial, Tuning
from blockscale.ops.tuning.sources import source_hash
from blockscale.ops.tuning.stored import facts
from blockscale.ops.versions import versions
from blockscale.problem import Problem
from blockscale.runtime import device_names, target_of, tuned


def tune(
    problem: Problem,
    device: torch.device,
    *,
    group_sizes: Tensor | None = None,
    store: bool = True,
    jobs: int | None = None,
    progress: Progress = lambda doing, done, total: None,
    clock: Clock | None = None,
) -> Tuning:
    """Time every legal config of every kernel that takes the problem.

    group_sizes   of a ragged problem, to be timed with; without them rows are spread at random
    store         keep the result, so that `choose` finds it, in this process and later ones
    jobs          compilations at a time
    """
    machine = _machine(problem, device)
    if store:
        tuned.check_storable()
    problem = replace(problem, bias=False)  # which costs every kernel the same
    with _on_device(device), torch.no_grad():
        contest = Contest(problem, device, progress, clock, group_sizes)
        contest.leave_out_what_no_graph_holds()
        contest.compile(jobs)
        trials, best = contest.run()
    path = None
    if store and best.seconds is not None and trials[0].seconds is not None:
        path = tuned.keep(machine, _result(problem, trials[0], best))
        choose.cache_clear()
    return Tuning(problem, machine.device, trials, best, path)


def _machine(problem: Problem, device: torch.device) -> tuned.Machine:
    """What the result will belong to, or why nothing can be measured."""
    if not problem.verb.endswith("matmul"):
        raise ValueError(f"tune: {problem.verb} has one config; products can be tuned")
    if device.type not in ("cpu", "cuda") or target_of(device) != problem.target:
        raise ValueError(f"tune: {problem} cannot be measured on {device}")
    if not (problem.rows and problem.n):
        raise ValueError(f"tune: there is nothing to compute in {problem}")
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "tune: a CUDA graph is being captured, and nothing can be timed meanwhile: tune first"
        )
    names = device_names(problem.target)
    if len(names) > 1:
        raise RuntimeError(
            f"tune: {' and '.join(names)} are all {problem.target}, and a stored result could not "
            "tell them apart: show this process GPUs of one kind, with CUDA_VISIBLE_DEVICES"
        )
    return tuned.Machine(names[0], problem.target)


@contextmanager
def _on_device(device: torch.device) -> Iterator[None]:
    """On a GPU, on a stream of its own, since only such can be captured."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            yield
        torch.cuda.synchronize()


def _result(problem: Problem, rule: Trial, best: Trial) -> tuned.Result:
    return tuned.Result(
        problem=facts(problem),
        sources=source_hash(problem.target),
        best=_measured(best),
        rule=_measured(rule),
        date=date.today().isoformat(),
        versions=versions(problem.target),
    )


def _measured(trial: Trial) -> tuned.Measured:
    candidate, microseconds = trial.candidate, round(1e6 * (trial.seconds or 0), 4)
    return tuned.Measured(candidate.kernel.NAME, candidate.fields, microseconds)
