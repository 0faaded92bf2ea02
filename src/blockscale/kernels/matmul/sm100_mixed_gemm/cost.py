"""How long cuda/kernels/sm100_mixed_gemm.cu should take, counted and not measured: no Blackwell GPU
has run it.

A stage takes as long as the slowest of four resources: the tensor cores at the data sheet's rate;
the instructions of the warps that decode; shared memory, which TMA writes and the tensor cores (x)
and warps (codes) read once; the port from the L2 cache. Tiles follow each other on a CTA or pair,
and of a tile's end only the columns that two accumulators share count, which the next tile waits
for.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from blockscale.formats import Format
from blockscale.kernels.contract import Prediction
from blockscale.kernels.matmul.fragments.groups import routings
from blockscale.kernels.matmul.sm100_mixed_gemm.config import CTA_ROWS, DECODING, TILE_K, Config
from blockscale.kernels.matmul.sm100_mixed_gemm.shared_memory import TILES, shared_memory
from blockscale.problem import Problem

_START = 3.0  # microseconds from launch to the first product, as on Hopper
_SHARED_RATE = 128  # bytes of shared memory that an SM reads or writes in a cycle
_L2_RATE = 64  # bytes that an SM gets from the L2 cache in a cycle
_DRAM = 0.9  # of the data sheet's rate
_LATENCY = 800  # cycles from a load of the first stage to its products
_COLUMN = 8  # cycles in which the epilogue reads a column of all lanes and stores it
_SCHEDULERS = 4  # of an SM, each of which issues an instruction of a warp in a cycle
# Instructions of a warp for 16 rows of w and 64 k in the machine code for sm_100a, by bits of a
# code; those that decode scales are shared by the stages that they serve.
_FLOATS = {4: 130, 6: 181, 8: 146}
_TABLES = {2: 123, 3: 124, 4: 133, 5: 195}


class Counts(NamedTuple):
    """Cycles of one stage in each resource, and of the end of a tile that nothing hides."""

    tensor: float
    decoding: float
    shared: float
    l2: float
    stages: int
    end: float

    @property
    def stage(self) -> float:
        return max(self.tensor, self.decoding, self.shared, self.l2)

    @property
    def tile(self) -> float:
        return self.stages * self.stage + self.end

    @property
    def slowest(self) -> str:
        by_name = {
            "tensor cores": self.tensor,
            "decoding": self.decoding,
            "shared memory": self.shared,
            "the L2 cache": self.l2,
        }
        return max(by_name, key=lambda name: by_name[name])


def _instructions(format: Format) -> int:
    return (_TABLES if format.is_codebook else _FLOATS)[format.element.bits]


def counts(problem: Problem, config: Config) -> Counts:
    format = problem.w_kind.format
    memory = shared_memory(config, format, problem.out)
    scales = memory.scale_bytes * TILE_K / (8 * format.block)  # which several stages share
    coded = TILES * (memory.code_bytes + scales)
    return Counts(
        tensor=2.0 * CTA_ROWS * config.tile_m * TILE_K / problem.device.mma_flops_per_cycle,
        decoding=_instructions(format) * DECODING / _SCHEDULERS,
        shared=2 * (memory.x_bytes + coded) / _SHARED_RATE,
        l2=(memory.x_bytes + coded) / _L2_RATE,
        stages=ceil(problem.k / TILE_K),
        end=_COLUMN * config.columns.shared,
    )


def cost(problem: Problem, config: Config) -> Prediction:
    device, counted = problem.device, counts(problem, config)
    rounds = (
        each.chance * ceil(each.tiles * config.n_tiles(problem) / config.clusters(problem))
        for each in routings(problem, config.tile_m)
    )
    cycles = sum(rounds) * counted.tile
    cycles += _LATENCY + _COLUMN * config.tile_m  # the end of the last tile
    computing = cycles / device.sm_hz * 1e6
    reading = problem.bytes / (device.dram_bytes_per_s * _DRAM) * 1e6
    slow, by = (reading, "DRAM") if reading > computing else (computing, counted.slowest)
    time = _START + slow
    peak = device.mma_flops_per_cycle * device.sms * device.sm_hz
    share = problem.flops / (peak * time * 1e-6)
    return Prediction(time, f"{by}: {share:.0%} of the tensor cores' peak, predicted, not measured")
