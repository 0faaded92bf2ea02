"""What cuda/kernels/stream.cu is specialised by when it is compiled for a problem."""

from __future__ import annotations

from functools import lru_cache

from blockscale.formats import Float
from blockscale.kernels.cuda.enums import Element, Scale
from blockscale.kernels.matmul.fragments.numbers import PAIRS, scales_weights, x_dtype
from blockscale.kernels.matmul.stream.config import Config
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.shared_memory import shared_memory
from blockscale.kernels.matmul.stream.work import decodes_x
from blockscale.problem import Problem, parse_kind
from blockscale.runtime.cuda import Build


def stream_build(problem: Problem, config: Config, symmetric: bool) -> Build:
    x = problem.x if decodes_x(config, facts_of(problem)) else x_dtype(problem)
    return _specialised(problem.w, x, problem.gated, problem.ragged, symmetric, config)


@lru_cache(maxsize=4096)
def _specialised(
    w: str, x: str, gated: bool, ragged: bool, symmetric: bool, config: Config
) -> Build:
    format = parse_kind(w).format
    element, floats = format.element, isinstance(format.element, Float)
    multiplied = x if x in PAIRS else "bfloat16"  # codes of x are decoded to it
    defines: dict[str, str | int] = {
        "BS_X": PAIRS[multiplied],
        "BS_X_CODED": int("@" in x),
        "BS_ELEMENT": (Element[element.name.upper()] if floats else Element.TABLE).name,
        "BS_SCALE": Scale[format.scale.name.upper()].name,
        "BS_BITS": element.bits,
        "BS_BLOCK": format.block,
        "BS_TILE_M": config.tile_m,
        "BS_TILES_PER_WARP": config.tiles_per_warp,
        "BS_N_WARPS": config.n_warps,
        "BS_K_WARPS": config.k_warps,
        "BS_STAGES": config.stages,
        "BS_SPLITS": config.splits,
        "BS_TILE_K": config.tile_k,
        "BS_GATED": int(gated),
        "BS_RAGGED": int(ragged),
        "BS_SYMMETRIC": int(symmetric),
        "BS_CTAS_PER_SM": config.ctas_per_sm,
        "BS_WGMMA": int(config.wgmma),
    }
    scaled = scales_weights(format, multiplied, config.tile_m)
    defines |= {"BS_SCALES_WEIGHTS": int(scaled)}
    defines |= shared_memory(config, format, scaled, gated).defines()
    if "@" in x:
        coded = parse_kind(x).format
        defines |= {"BS_X_SCALE": Scale[coded.scale.name.upper()].name, "BS_X_BLOCK": coded.block}
    product = "HGMMA" if config.wgmma else "HMMA"
    return Build("stream.cu", "stream", tuple(defines.items()), needs=(product,))
