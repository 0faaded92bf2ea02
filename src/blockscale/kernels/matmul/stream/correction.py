"""How far kernels/matmul/stream/cost.py errs: which facts of a launch the network of
`correction.json` is asked about. `bench.fit_correction stream` fits it."""

from __future__ import annotations

from math import ceil, log2
from pathlib import Path

from blockscale.kernels.matmul.fragments.network import read_network
from blockscale.kernels.matmul.stream.cost import Cost, Work
from blockscale.runtime import Device

TABLE = Path(__file__).with_suffix(".json")
_SCHEDULERS = 4  # of an SM
_LEAST_SHARE = 1 / 64  # of the predicted time: bounds below are alike


def correction(work: Work, cost: Cost, device: Device) -> float:
    """Measured over predicted time, as it is to be expected."""
    if not was_measured(device):
        return 1.0
    return read_network(TABLE).factor(features(work, cost, device.sms))


def was_measured(device: Device) -> bool:
    return read_network(TABLE).knows(device)


def features(work: Work, cost: Cost, sms: int) -> list[float]:
    """Counts and bytes by their logarithms; ratios and flags as they are."""
    warps = work.n_warps * work.k_warps
    steps = ceil(work.stages_of_k / work.k_warps)
    ctas_each = work.ctas / sms
    schedules = work.resident * warps / _SCHEDULERS
    x_bytes = 2 * work.rows * work.k / work.splits  # of a CTA
    stage_bytes = 16 * warps * work.tiles * work.tile_k * (work.bits / 8 + 1 / work.block)
    running = min(work.ctas, sms * work.resident)
    logarithms = (
        work.tiles,
        work.tile_m,
        work.rows,
        work.n_warps,
        work.k_warps,
        work.tile_k,
        work.resident,
        work.splits,
        work.ctas,
        work.rounds,
        work.turns,
        steps,
        work.k,
        work.weight_bytes,
        warps,
        warps * work.resident,
        work.weight_rows,
        work.resident * x_bytes,
        work.ctas * x_bytes,
        running * (work.stages - 1) * stage_bytes,
        *(max(each / cost.microseconds, _LEAST_SHARE) for each in cost.bounds.values()),
    )
    return [
        *map(log2, logarithms),
        work.stages,
        work.bits,
        work.block,
        work.gated,
        work.ragged,
        work.table,
        work.algorithm == "few",
        work.algorithm == "mma",
        work.algorithm == "wgmma",
        work.element.startswith("codebook"),
        steps * work.k_warps / work.stages_of_k,
        work.stages_of_k * work.splits * work.tile_k / work.k,
        work.rows / work.tile_m,
        work.crowded,
        ceil(ctas_each) / ctas_each,
        ceil(schedules) / schedules,
    ]
