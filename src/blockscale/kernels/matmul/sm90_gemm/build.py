"""What cuda/kernels/sm90_gemm.cu is specialised by when it is compiled for a problem."""

from __future__ import annotations

from functools import lru_cache

from blockscale.kernels.cuda.enums import Activation
from blockscale.kernels.matmul.fragments.numbers import x_dtype
from blockscale.kernels.matmul.fragments.tiled import format_defines
from blockscale.kernels.matmul.sm90_gemm.config import TILE_K, Config
from blockscale.kernels.matmul.sm90_gemm.shared_memory import shared_memory
from blockscale.numerics import parse_activation
from blockscale.problem import Problem, parse_kind
from blockscale.runtime.cuda import Build


def gemm_build(problem: Problem, config: Config, symmetric: bool) -> Build:
    activation = parse_activation(problem.activation).name if problem.gated else "none"
    x = x_dtype(problem)
    return _specialised(problem.w, x, problem.out, activation, problem.ragged, symmetric, config)


@lru_cache(maxsize=4096)
def _specialised(
    w: str, x: str, out: str, activation: str, ragged: bool, symmetric: bool, config: Config
) -> Build:
    format = parse_kind(w).format
    defines: dict[str, str | int] = {
        **format_defines(format, x, out, symmetric),
        "BS_TILE_M": config.tile_m,
        "BS_WARPGROUPS": config.warpgroups,
        "BS_TILES_PER_WARP": config.tiles_per_warp,
        "BS_STAGES": config.stages,
        "BS_TURN": config.turn_k(format) // TILE_K,
        "BS_CLUSTER": config.cluster,
        "BS_SPLIT": int(config.split),
        "BS_PARTS": config.k_parts,
        "BS_GATED": int(activation != "none"),
        "BS_ACTIVATION": Activation[activation.upper()].name,
        "BS_RAGGED": int(ragged),
        "BS_TRANSPOSED": int(config.transposed),
    }
    defines |= shared_memory(config, format, out, activation != "none").defines()
    return Build("sm90_gemm.cu", "sm90_gemm", tuple(defines.items()), needs=("HGMMA", "UTMALDG"))
