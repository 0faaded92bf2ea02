"""What cuda/kernels/sm100_gemm.cu is specialised by when it is compiled for a problem."""

from __future__ import annotations

from functools import lru_cache

from blockscale.kernels.cuda.enums import Activation
from blockscale.kernels.matmul.block_scaled.operands import Operands, operands
from blockscale.kernels.matmul.sm100_gemm import columns
from blockscale.kernels.matmul.sm100_gemm.config import Config
from blockscale.kernels.matmul.sm100_gemm.shared_memory import shared_memory
from blockscale.numerics import parse_activation
from blockscale.problem import Problem
from blockscale.runtime.cuda import Build

_INSTRUCTIONS = {"MXF8F6F4": "UTCQMMA", "MXF4": "UTCOMMA", "MXF4NVF4": "UTCOMMA"}
_SPELLED = {"MXF8F6F4": "{}", "MXF4": "PACKED_{}", "MXF4NVF4": "PACKED_{}"}


def gemm_build(problem: Problem, config: Config) -> Build:
    activation = parse_activation(problem.activation).name if problem.gated else "none"
    return _specialised(operands(problem), problem.out, activation, problem.ragged, config)


@lru_cache(maxsize=4096)
def _specialised(kinds: Operands, out: str, activation: str, ragged: bool, config: Config) -> Build:
    defines: dict[str, str | int] = {
        "BS_KIND": kinds.kind,
        "BS_X_TYPE": _SPELLED[kinds.kind].format(kinds.x.upper()),
        "BS_W_TYPE": _SPELLED[kinds.kind].format(kinds.w.upper()),
        "BS_OUT": out.upper(),
        "BS_MMA_N": config.mma_n,
        "BS_CTAS": config.ctas,
        "BS_PANELS": config.panels,
        "BS_STAGES": config.stages,
        "BS_MULTICAST": int(config.multicast),
        "BS_GATED": int(activation != "none"),
        "BS_ACTIVATION": Activation[activation.upper()].name,
        "BS_RAGGED": int(ragged),
    }
    defines |= columns.defines(config.columns(kinds))
    defines |= shared_memory(config, kinds).defines()
    needs = (_INSTRUCTIONS[kinds.kind], "UTMALDG", "UTCCP", "LDTM", "UTCBAR")
    return Build("sm100_gemm.cu", "sm100_gemm", tuple(defines.items()), needs=needs)
