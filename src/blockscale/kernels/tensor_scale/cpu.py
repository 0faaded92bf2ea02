"""An exact maximum by native code, then the format's rule."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from blockscale.kernels.amax import derive_scales, native_amax
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.native import NativeConfig, native_configs, native_refusal
from blockscale.problem import Problem

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "cpu"
reads = reads_canonical


def refuses(problem: Problem) -> str | None:
    return native_refusal(problem.device)


def configs(problem: Problem) -> list[NativeConfig]:
    return native_configs()


def bind(
    problem: Problem, config: NativeConfig, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(partial(_run, problem))


def _run(problem: Problem, x: Tensor, out: Tensor) -> None:
    derive_scales(x, problem.w_kind.format, native_amax, out)
