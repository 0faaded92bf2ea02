"""Problems whose best config was measured, and is not the one that is predicted to be the fastest.

Written by `bench.exceptions` from stored sweeps, of the shapes that the benchmarks show and of
experts and quantised x: problems whose predicted config, or the Hopper GEMM's where that kernel is
predicted to be the faster, was more than 1.5% slower than the best one measured, or was not timed.
Both times are kept, and the GPU that they are from: on others the prediction counts. The aim is an
empty table.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from blockscale.kernels.matmul.stream.config import Config
from blockscale.problem import Problem

TABLE = Path(__file__).with_suffix(".json")


class Exceptional(NamedTuple):
    config: Config
    microseconds: float
    of_predicted: float | None  # what the config took that is predicted to be the fastest
    device: str


def exception_key(problem: Problem) -> tuple[Any, ...]:
    """What an exception is found by."""
    shape = problem.m, problem.n, problem.k, problem.groups, problem.ragged, problem.gated
    return (problem.w, problem.x, *shape)


def exception(problem: Problem) -> Exceptional | None:
    table = _table()
    of_device = (problem.target, problem.device.sms) == (table.target, table.sms)
    return table.known.get(exception_key(problem)) if of_device else None


class _Table(NamedTuple):
    target: str
    sms: int
    known: dict[tuple[Any, ...], Exceptional]


@lru_cache(maxsize=1)
def _table() -> _Table:
    stored = json.loads(TABLE.read_text())
    device = stored["device"]
    known: dict[tuple[Any, ...], Exceptional] = {
        tuple(key): Exceptional(read_config(numbers), took, predicted, device)
        for *key, numbers, took, predicted in stored["problems"]
    }
    return _Table(stored["target"], stored["sms"], known)


def read_config(numbers: list[int]) -> Config:
    """Of its fields as they stand in JSON, where flags are 0 or 1."""
    told: dict[str, Any] = {
        field.name: bool(number) if field.type == "bool" else number
        for field, number in zip(fields(Config), numbers, strict=True)
    }
    return Config(**told)
