"""Native code that gives the bits of the definition, from canonical or prepared bytes."""

from __future__ import annotations

from torch import Tensor

from blockscale.kernels.contract import Parts
from blockscale.kernels.native import (
    DECODED,
    NativeConfig,
    decode,
    native_configs,
    native_refusal,
)
from blockscale.problem import Problem

NAME = "cpu"


def refuses(problem: Problem) -> str | None:
    layout = str(problem.w_kind.layout)
    if layout not in DECODED:
        return f"reads {', '.join(DECODED)}, not {layout}"
    return native_refusal(problem.target)


def configs(problem: Problem) -> list[NativeConfig]:
    return native_configs()


def launch(
    problem: Problem,
    config: NativeConfig,
    parts: Parts,  # [groups, n, k]; tensor_scale [groups, n]
    out: Tensor,  # [groups, n, k]
) -> None:
    decode(problem.w_kind, parts, config, out)
