"""How long cuda/kernels/sm120_gemm.cu should take, counted and not measured: no such GPU has run
it.

A stage takes as long as the slowest of three resources: the tensor cores at the data sheet's rate;
shared memory, which TMA writes and every warp reads its fragments from; the port from the L2 cache.
Warps that multiply also store, so that the end of a tile is not hidden.
"""

from __future__ import annotations

from math import ceil

from blockscale.kernels.contract import Prediction
from blockscale.kernels.matmul.block_scaled.operands import operands
from blockscale.kernels.matmul.sm120_gemm.config import TILE_M, Config
from blockscale.kernels.matmul.sm120_gemm.shared_memory import shared_memory
from blockscale.problem import Problem

_START = 3.0  # microseconds from launch to the first product
_SHARED_RATE = 128  # bytes of shared memory that an SM reads or writes in a cycle
_L2_RATE = 64  # bytes that an SM gets from the L2 cache in a cycle
_DRAM = 0.9  # of the data sheet's rate
_LATENCY = 800  # cycles from a load of the first stage to its products
_WARP_ROWS = 64, 32  # of x and w


def cost(problem: Problem, config: Config) -> Prediction:
    kinds, device = operands(problem), problem.device
    memory = shared_memory(config, kinds, problem.gated)
    rate = device.block_scaled_gain * kinds.rate * device.mma_flops_per_cycle
    tensor = 2.0 * TILE_M * config.w_rows * kinds.panel_k / rate
    warps = (TILE_M // _WARP_ROWS[0]) * (config.w_rows // _WARP_ROWS[1])
    moved = memory.x_bytes + memory.w_bytes + warps * sum(_WARP_ROWS) * 128
    shared, l2 = moved / _SHARED_RATE, memory.stage_tx / _L2_RATE
    stage = max(tensor, shared, l2)
    out = TILE_M * config.tile_n(problem) * (4 if problem.out == "float32" else 2)
    tile = ceil(problem.k / kinds.panel_k) * stage + out / _L2_RATE
    rounds = ceil(config.m_tiles(problem) * config.n_tiles(problem) / config.ctas(problem))
    computing = (rounds * tile + _LATENCY) / device.sm_hz * 1e6
    reading = problem.bytes / (device.dram_bytes_per_s * _DRAM) * 1e6
    by = {"tensor cores": tensor, "shared memory": shared, "the L2 cache": l2}
    slowest = "DRAM" if reading > computing else max(by, key=lambda name: by[name])
    time = _START + max(computing, reading)
    share = problem.flops / (rate * device.sms * device.sm_hz * time * 1e-6)
    told = f"{slowest}: {share:.0%} of the tensor cores' peak, predicted, not measured"
    return Prediction(time, told)
