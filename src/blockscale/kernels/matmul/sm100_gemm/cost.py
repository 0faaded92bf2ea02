"""How long cuda/kernels/sm100_gemm.cu should take, counted and not measured: no Blackwell GPU has
run it.

A stage takes as long as the slowest of four resources: the tensor cores at the data sheet's rate;
shared memory, which TMA writes and the tensor cores read once (x, where two instructions multiply
it, because they may keep it); the port from the L2 cache; DRAM. Tiles follow each other on a CTA or
pair, and of a tile's end only what the next tile waits for counts: the columns that two
accumulators share, or those of one that the next tile's first instructions write: while these run,
the rest is read.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from blockscale.kernels.contract import Prediction
from blockscale.kernels.matmul.block_scaled.operands import operands
from blockscale.kernels.matmul.sm100_gemm.config import CTA_ROWS, INSTRUCTION_N, Config
from blockscale.kernels.matmul.sm100_gemm.shared_memory import shared_memory
from blockscale.problem import Problem

_START = 3.0  # microseconds from launch to the first product, as on Hopper
_SHARED_RATE = 128  # bytes of shared memory that an SM reads or writes in a cycle
_L2_RATE = 64  # bytes that an SM gets from the L2 cache in a cycle
_DRAM = 0.9  # of the data sheet's rate
_LATENCY = 800  # cycles from a load of the first stage to its products
_COLUMN = 4  # cycles in which the epilogue reads a column of all lanes


class Counts(NamedTuple):
    """Cycles of one stage in each resource, and of the end of a tile that nothing hides."""

    tensor: float
    shared: float
    l2: float
    stages: int
    end: float

    @property
    def stage(self) -> float:
        return max(self.tensor, self.shared, self.l2)

    @property
    def tile(self) -> float:
        return self.stages * self.stage + self.end

    @property
    def slowest(self) -> str:
        by_name = {
            "tensor cores": self.tensor,
            "shared memory": self.shared,
            "the L2 cache": self.l2,
        }
        return max(by_name, key=lambda name: by_name[name])


def counts(problem: Problem, config: Config) -> Counts:
    kinds, device = operands(problem), problem.device
    memory = shared_memory(config, kinds)
    flops = 2.0 * CTA_ROWS * config.mma_n * config.tile_k(kinds)  # of a CTA
    columns = config.columns(kinds)
    waited = columns.shared if columns.accumulators == 2 else min(config.mma_n, INSTRUCTION_N)
    loaded = float(memory.stage_tx)
    if config.multicast:
        loaded -= memory.scale_bytes * (config.mma_n // 128) // (1 + config.mma_n // 128) / 2
    return Counts(
        tensor=flops / (kinds.rate * device.mma_flops_per_cycle),
        shared=2 * (memory.x_bytes + memory.w_bytes + memory.scale_bytes) / _SHARED_RATE,
        l2=loaded / _L2_RATE,
        stages=ceil(problem.k / config.tile_k(kinds)),
        end=_COLUMN * waited,
    )


def cost(problem: Problem, config: Config) -> Prediction:
    device, counted = problem.device, counts(problem, config)
    rounds = ceil(config.m_tiles(problem) * config.n_tiles(problem) / config.clusters(problem))
    kinds = operands(problem)
    last = _COLUMN * config.mma_n  # the end of the last tile
    cycles = rounds * counted.tile + _LATENCY + last
    computing = cycles / device.sm_hz * 1e6
    reading = problem.bytes / (device.dram_bytes_per_s * _DRAM) * 1e6
    slow, by = (reading, "DRAM") if reading > computing else (computing, counted.slowest)
    time = _START + slow
    peak = kinds.rate * device.mma_flops_per_cycle * device.sms * device.sm_hz
    share = problem.flops / (peak * time * 1e-6)
    return Prediction(time, f"{by}: {share:.0%} of the tensor cores' peak, predicted, not measured")
