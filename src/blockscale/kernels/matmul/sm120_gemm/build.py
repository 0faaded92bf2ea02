"""What cuda/kernels/sm120_gemm.cu is specialised by when it is compiled for a problem."""

from __future__ import annotations

from functools import lru_cache

from blockscale.kernels.cuda.enums import Activation
from blockscale.kernels.matmul.block_scaled.operands import Operands, operands
from blockscale.kernels.matmul.sm120_gemm.config import Config
from blockscale.kernels.matmul.sm120_gemm.shared_memory import shared_memory
from blockscale.numerics import parse_activation
from blockscale.problem import Problem
from blockscale.runtime.cuda import Build

_INSTRUCTIONS = {"MXF8F6F4": "QMMA.SF", "MXF4": "OMMA.SF", "MXF4NVF4": "OMMA.SF"}


def gemm_build(problem: Problem, config: Config) -> Build:
    activation = parse_activation(problem.activation).name if problem.gated else "none"
    return _specialised(operands(problem), problem.out, activation, problem.ragged, config)


@lru_cache(maxsize=4096)
def _specialised(kinds: Operands, out: str, activation: str, ragged: bool, config: Config) -> Build:
    gated = activation != "none"
    defines: dict[str, str | int] = {
        "BS_KIND": kinds.kind,
        "BS_X_TYPE": kinds.x.upper(),
        "BS_W_TYPE": kinds.w.upper(),
        "BS_OUT": out.upper(),
        "BS_W_ROWS": config.w_rows,
        "BS_STAGES": config.stages,
        "BS_GATED": int(gated),
        "BS_ACTIVATION": Activation[activation.upper()].name,
        "BS_RAGGED": int(ragged),
    }
    defines |= shared_memory(config, kinds, gated).defines()
    needs = (_INSTRUCTIONS[kinds.kind], "UTMALDG", "LDSM")
    return Build("sm120_gemm.cu", "sm120_gemm", tuple(defines.items()), needs=needs)
