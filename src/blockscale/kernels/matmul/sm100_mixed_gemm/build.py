"""What cuda/kernels/sm100_mixed_gemm.cu is specialised by when it is compiled for a problem."""

from __future__ import annotations

from functools import lru_cache

from blockscale.kernels.cuda.enums import Activation
from blockscale.kernels.matmul.fragments.numbers import x_dtype
from blockscale.kernels.matmul.fragments.tiled import format_defines
from blockscale.kernels.matmul.sm100_mixed_gemm.config import Config
from blockscale.kernels.matmul.sm100_mixed_gemm.shared_memory import shared_memory
from blockscale.numerics import parse_activation
from blockscale.problem import Problem, parse_kind
from blockscale.runtime.cuda import Build

_NEEDS = ("UTCHMMA", "UTMALDG", "STTM", "LDTM", "UTCBAR")


def gemm_build(problem: Problem, config: Config, symmetric: bool) -> Build:
    activation = parse_activation(problem.activation).name if problem.gated else "none"
    x = x_dtype(problem)
    return _specialised(problem.w, x, problem.out, activation, problem.ragged, symmetric, config)


@lru_cache(maxsize=4096)
def _specialised(
    w: str, x: str, out: str, activation: str, ragged: bool, symmetric: bool, config: Config
) -> Build:
    format, columns = parse_kind(w).format, config.columns
    defines: dict[str, str | int] = {
        **format_defines(format, x, out, symmetric),
        "BS_TILE_M": config.tile_m,
        "BS_CTAS": config.ctas,
        "BS_STAGES": config.stages,
        "BS_GATED": int(activation != "none"),
        "BS_ACTIVATION": Activation[activation.upper()].name,
        "BS_RAGGED": int(ragged),
        "BS_ACCUMULATORS": columns.accumulators,
        "BS_SHARED_COLUMNS": columns.shared,
        "BS_SET_COLUMN": columns.first_set,
        "BS_SETS": columns.sets,
    }
    defines |= shared_memory(config, format, out).defines()
    return Build("sm100_mixed_gemm.cu", "sm100_mixed_gemm", tuple(defines.items()), needs=_NEEDS)
