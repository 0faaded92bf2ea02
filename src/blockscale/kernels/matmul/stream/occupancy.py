"""How many CTAs of the stream kernel an SM holds at a time, and what a launch asks of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from blockscale.kernels.matmul.fragments.clusters import all_at_once
from blockscale.kernels.matmul.stream.config import Config
from blockscale.kernels.matmul.stream.facts import Facts
from blockscale.kernels.matmul.stream.shared_memory import shared_memory

STATIC_SHARED = 2048  # bytes that the kernel has for itself
_RESERVED = 1024  # bytes of shared memory that a CTA takes beside its own
_SPLITS = (1, 2, 3, 4, 8)  # clusters of 5 to 7 find fewer places than `cluster_places` says
_MOST_WARPS = 24  # of an SM
_MOST_REGISTERS = 255  # of a thread
# Of a thread beside its sums, by tiles of a warp: addresses, codes, scales, weights. With fewer,
# builds of the sweeps spilled.
_OTHER_REGISTERS = {
    "few": {1: 60, 2: 60, 4: 84},
    "mma": {1: 72, 2: 88, 4: 120},
    "wgmma": {1: 84, 2: 96, 4: 96},
}
_BLOCK_REGISTERS = 56  # more where sums of blocks are scaled, of many columns
_TABLE_REGISTERS = 16  # more where `mma` decodes several tiles by a codebook
# Named barriers of an SM, and of a CTA whose warps pick theirs as they run: it gets all there are.
# With two warps each way, an H200 held 4 CTAs in all 217 timings that asked for 5 or 6.
_SM_BARRIERS, _CTA_BARRIERS = 64, 16


def occupancies(shape: Config, facts: Facts) -> Iterator[Config]:
    """With k split or not; as many CTAs to an SM as fit and are there, or one less."""
    busiest = {splits: ctas_of_busiest(shape, facts, splits) for splits in _splits(shape, facts)}
    fitting = _most_ctas(shape, facts)
    clusters = shape.output_tiles(facts) * facts.matrices
    for splits, there in busiest.items() if fitting else ():
        most = min(fitting, there)
        for count in range(max(1, most - 1), most + 1):
            if not all_at_once(facts.device, clusters, splits, count):
                continue
            if (count, splits) == (1, 1):
                yield shape
            else:
                yield replace(shape, ctas_per_sm=count, splits=splits)


def fits(config: Config, facts: Facts) -> bool:
    clusters = config.output_tiles(facts) * facts.matrices
    return (
        config.splits in _splits(config, facts)
        and config.ctas_per_sm <= _most_ctas(config, facts)
        and all_at_once(facts.device, clusters, config.splits, config.ctas_per_sm)
    )


def _splits(config: Config, facts: Facts) -> Iterator[int]:
    """Of k, while every warp has a stage; they meet in a cluster."""
    most = _SPLITS[-1] if facts.device.clusters else 1
    share = config.k_warps * config.tile_k
    return (each for each in _SPLITS if each == 1 or (each <= most and each * share <= facts.k))


def ctas_of_busiest(config: Config, facts: Facts, splits: int) -> int:
    """CTAs of the SM that has most, if all have a place at once; of ragged groups, where as many
    have rows as in one call of sixteen."""
    _, busy = facts.busy_counts[-1]
    every = config.output_tiles(facts) * splits * max(facts.busy, busy)
    return max(1, ceil(every / facts.device.sms))


def _most_ctas(config: Config, facts: Facts) -> int:
    """That an SM has registers, warps, barriers and shared memory for."""
    registers = _registers(config, facts)
    if registers > _MOST_REGISTERS:
        return 0
    threads, device = config.threads, facts.device
    most = min(device.registers_per_sm // (threads * registers), _MOST_WARPS * 32 // threads)
    if config.n_warps > 1 and config.k_warps > 1 and not config.wgmma:  # those that share k meet
        most = min(most, _SM_BARRIERS // _CTA_BARRIERS)
    asked = asked_shared(config, facts) + STATIC_SHARED + _RESERVED
    return min(most, device.shared_per_sm // asked)


def _registers(config: Config, facts: Facts) -> int:
    """Of a thread, without spilling."""
    algorithm, tiles = config.algorithm, config.tiles_per_warp
    columns = tiles * config.tile_m
    # With few rows, one set of sums for each block that stands apart.
    sums = tiles * 4 * (config.tile_m + 1) if algorithm == "few" else columns // 2
    needed = sums + _OTHER_REGISTERS[algorithm][tiles]
    if algorithm == "mma":
        if tiles > 1 and facts.format.is_codebook:
            needed += _TABLE_REGISTERS
        if columns > 32 and not facts.scales_weights(config.tile_m):
            needed += _BLOCK_REGISTERS
    return needed


def asked_shared(config: Config, facts: Facts) -> int:
    """Bytes of shared memory that a CTA needs from its launch."""
    scaled = facts.scales_weights(config.tile_m)
    return shared_memory(config, facts.format, scaled, facts.gated).total


def padded_shared(config: Config, facts: Facts) -> int:
    """Bytes of shared memory to ask for: what a CTA needs, or so much more that an SM holds
    `config.ctas_per_sm` of them and no other.

    CTAs of the next kernel start early (PDL), and take whatever place there is: several of them on
    one SM while other SMs have none. Of 226 pairs of launches on an H200 that differed in room for
    one or two CTAs more than a kernel has, those with more room took 1.2 times as long in the
    median, and in six cases less.
    """
    needed = asked_shared(config, facts)
    if not facts.device.pdl:
        return needed
    return max(needed, facts.device.shared_per_sm // (config.ctas_per_sm + 1) - _RESERVED + 16)
