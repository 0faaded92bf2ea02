"""How far kernels/matmul/stream/cost.py errs: which facts of a launch the network of
`correction.json` is asked about. `bench.fit_correction stream` fits it."""

from __future__ import annotations

from math import ceil, log2
from pathlib import Path

from blockscale.kernels.matmul.fragments.network import read_network
from blockscale.kernels.matmul.stream.cost import Cost
from blockscale.kernels.matmul.stream.work import Work

TABLE = Path(__file__).with_suffix(".json")
_SCHEDULERS = 4  # of an SM
# Rows of a ragged group that has any, on average: no sweep that the network learned from had more,
# and it would make one up. Measured over predicted time with more of them is this in the median, of
# products and of gated ones (87 and 16 timings of h200_skewed_draw1 and draw2 and
# h200_experts_draw1 that are near the Hopper GEMM's, where it matters).
_SWEPT_ROWS, _BEYOND_SWEEPS = 16, {False: 1.015, True: 0.97}
_LEAST_SHARE = 1 / 64  # of the predicted time: bounds below are alike


def correction(work: Work, cost: Cost) -> float:
    """Measured over predicted time, as it is to be expected."""
    asked, facts, network = features(work, cost), work.facts, read_network(TABLE)
    if not network.knows(facts.device):
        return 1.0
    if facts.ragged and facts.rows > _SWEPT_ROWS:
        return _BEYOND_SWEEPS[facts.gated]
    return network.factor(asked)


def features(work: Work, cost: Cost) -> list[float]:
    """Counts and bytes by their logarithms; ratios and flags as they are."""
    config, facts = work.config, work.facts
    sms, element = facts.device.sms, facts.format.element
    warps = config.n_warps * config.k_warps
    steps = ceil(work.stages_of_k / config.k_warps)
    ctas_each = work.ctas / sms
    schedules = work.resident * warps / _SCHEDULERS
    x_bytes = 2 * work.rows * facts.k / config.splits  # of a CTA
    bytes_per_code = element.bits / 8 + 1 / facts.format.block
    stage_bytes = 16 * warps * config.tiles_per_warp * config.tile_k * bytes_per_code
    running = min(work.ctas, sms * work.resident)
    logarithms = (
        config.tiles_per_warp,
        config.tile_m,
        work.rows,
        config.n_warps,
        config.k_warps,
        config.tile_k,
        work.resident,
        config.splits,
        work.ctas,
        work.rounds,
        work.turns,
        steps,
        facts.k,
        work.weight_bytes,
        warps,
        warps * work.resident,
        config.weight_rows,
        work.resident * x_bytes,
        work.ctas * x_bytes,
        running * (config.stages - 1) * stage_bytes,
        *(max(each / cost.microseconds, _LEAST_SHARE) for each in cost.bounds.values()),
    )
    return [
        *map(log2, logarithms),
        config.stages,
        element.bits,
        facts.format.block,
        facts.gated,
        facts.ragged,
        config.shared_table,
        config.algorithm == "few",
        config.algorithm == "mma",
        config.algorithm == "wgmma",
        facts.format.is_codebook,
        steps * config.k_warps / work.stages_of_k,
        work.stages_of_k * config.splits * config.tile_k / facts.k,
        work.rows / config.tile_m,
        work.crowded,
        ceil(ctas_each) / ctas_each,
        ceil(schedules) / schedules,
    ]
