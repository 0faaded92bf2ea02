"""Native code that gives the bits of the definition, from canonical or prepared bytes."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.native import (
    DECODED,
    NativeConfig,
    decode,
    native_configs,
    native_refusal,
)
from blockscale.problem import Problem

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "cpu"
reads = reads_canonical


def refuses(problem: Problem) -> str | None:
    layout = str(problem.w_kind.layout)
    if layout not in DECODED:
        return f"reads {', '.join(DECODED)}, not {layout}"
    return native_refusal(problem.device)


def configs(problem: Problem) -> list[NativeConfig]:
    return native_configs()


def bind(
    problem: Problem, config: NativeConfig, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(partial(_run, problem, config, weights))


def _run(problem: Problem, config: NativeConfig, weights: tuple[Parts, ...], out: Tensor) -> None:
    (parts,) = weights
    decode(problem.w_kind, parts, config, out)
