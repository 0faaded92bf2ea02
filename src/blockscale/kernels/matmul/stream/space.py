"""Every legal Config of the stream kernel for a problem: what can run, with no word of speed.

`is_legal` has the rules of the kernel and of the hardware. `every_config` enumerates a grid under
them; values that were never within 2% of the best in some 6,000 timings are not in the grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil

from blockscale.formats import Float
from blockscale.kernels.matmul.fragments.clusters import cluster_places
from blockscale.kernels.matmul.fragments.groups import matrices, rows_of_most
from blockscale.kernels.matmul.fragments.numbers import scales_weights, x_dtype
from blockscale.kernels.matmul.stream.config import STATIC_SHARED, Config
from blockscale.problem import Problem

MMA_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # rows of x that a CTA takes at a time
WGMMA_ROWS = (16, 24, 32, 48, 64, 96, 128)
_MMA_WARPS = ((1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2), (2, 8), (4, 4), (7, 2))
_WGMMA_WARPS = ((4, 1), (4, 2), (8, 1), (4, 4), (8, 2), (16, 1))
_STAGES = ((2, 256), (3, 256), (3, 128), (2, 128))  # number, k of each
_SPLITS = (1, 2, 3, 4, 8)  # clusters of 5 to 7 find fewer places than `cluster_places` says
_TURN_MORE = 1 / 14  # of ragged groups that have rows, those that may take one more turn
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
_RESERVED = 1024  # bytes of shared memory that a CTA takes beside its own
# Named barriers of an SM, and of a CTA whose warps pick theirs as they run: it gets all there are.
# With two warps each way, an H200 held 4 CTAs in all 217 timings that asked for 5 or 6.
_SM_BARRIERS, _CTA_BARRIERS = 64, 16


def takes_wgmma(problem: Problem) -> bool:
    """Whether four warps can multiply together, on Hopper: by weights that are scaled first."""
    format = problem.w_kind.format
    return problem.device.wgmma and scales_weights(format, x_dtype(problem), WGMMA_ROWS[0])


def every_config(problem: Problem) -> Iterator[Config]:
    tables = (False, True) if problem.w_kind.format.is_codebook else (False,)
    for (tile_m, wgmma), table in product(_rows_at_a_time(problem), tables):
        warps = _WGMMA_WARPS if wgmma else _MMA_WARPS
        tiles = (1, 2) if wgmma else (1, 2, 4)
        for (n_warps, k_warps), each, (stages, tile_k) in product(warps, tiles, _STAGES):
            shape = Config(
                tile_m=tile_m,
                tiles_per_warp=each,
                n_warps=n_warps,
                k_warps=k_warps,
                stages=stages,
                tile_k=tile_k,
                ctas_per_sm=1,
                splits=1,
                wgmma=wgmma,
                shared_table=table,
            )
            if _is_computable(shape, problem):
                yield from _shared_out(shape, problem)


def _shared_out(shape: Config, problem: Problem) -> Iterator[Config]:
    """With k split or not; as many CTAs to an SM as fit and are there, or one less."""
    fitting = _most_ctas(shape, problem)
    for splits in _splits(shape, problem) if fitting else ():
        most = min(fitting, ctas_of_busiest(shape, problem, splits))
        for count in range(max(1, most - 1), most + 1):
            if not _have_places(shape, problem, splits, count):
                continue
            if (count, splits) == (1, 1):
                yield shape
            else:
                yield replace(shape, ctas_per_sm=count, splits=splits)


def _rows_at_a_time(problem: Problem) -> Iterator[tuple[int, bool]]:
    """All rows in one turn where that can be; few may leave columns idle. Where `wgmma` can take
    more than 16 rows, `mma` never was faster."""
    rows = rows_of_most(problem, WGMMA_ROWS[-1])
    enough = [each for each in MMA_ROWS if each >= rows]
    # Up to 4 rows of codes are decoded by the kernel itself, with more by a kernel of its own.
    few = 4 if "@" in problem.x and rows <= 4 else 8
    mma = [each for each in enough if each <= max(few, enough[0])] if enough else [MMA_ROWS[-1]]
    if not takes_wgmma(problem):  # where so many do not fit, fewer take several turns
        mma += [each for each in (8, 16, 32) if each < mma[0]]
        yield from ((each, False) for each in mma)
        return
    mma += _nearly_enough(MMA_ROWS, rows, problem)
    yield from ((each, False) for each in mma if each <= 16)
    if few == 8:
        wgmma = [each for each in WGMMA_ROWS if each >= rows][:2] or [WGMMA_ROWS[-1]]
        wgmma += _nearly_enough(WGMMA_ROWS, rows, problem)
        yield from ((each, True) for each in wgmma)


def _nearly_enough(sizes: tuple[int, ...], rows: int, problem: Problem) -> list[int]:
    """The least with which a few ragged groups alone take one more turn, where it is not enough for
    all: 8, since fewer rows take `mma` as long, or 16. Larger ones were timed on two problems, and
    lost."""
    nearly = rows_of_most(problem, sizes[-1], _TURN_MORE)
    return [each for each in sizes if each in (8, 16) and nearly <= each < rows][:1]


def is_legal(config: Config, problem: Problem) -> bool:
    return (
        _is_computable(config, problem)
        and config.ctas_per_sm <= _most_ctas(config, problem)
        and config.splits in _splits(config, problem)
        and _have_places(config, problem, config.splits, config.ctas_per_sm)
    )


def _is_computable(config: Config, problem: Problem) -> bool:
    format = problem.w_kind.format
    if config.tile_m < 8:
        element = format.element
        if isinstance(element, Float) and element.specials == "ieee":
            return False  # side by side, an infinite weight would meet the zeros of other blocks
        if config.tile_k < 8 * format.block:
            return False  # eight blocks stand side by side
    many = config.tile_m > 32 and config.tiles_per_warp > 1 and not config.wgmma
    if many and not _scales(config, problem):
        return False  # there are no registers for the sums of blocks of two tiles
    return not (problem.gated and config.tiles_per_warp % 2)  # tiles alternate between gate and up


def _scales(config: Config, problem: Problem) -> bool:
    return scales_weights(problem.w_kind.format, x_dtype(problem), config.tile_m)


def _most_ctas(config: Config, problem: Problem) -> int:
    """That an SM has shared memory, registers, warps and barriers for."""
    asked = config.shared_bytes(problem) + STATIC_SHARED + _RESERVED
    memory = problem.device.shared_per_sm // asked
    if config.tile_m >= 8:
        sums = config.tiles_per_warp * config.tile_m // 2
    else:  # one set for each block that stands apart
        sums = config.tiles_per_warp * 4 * (config.tile_m + 1)
    kind = "wgmma" if config.wgmma else "mma" if config.tile_m >= 8 else "few"
    needed = sums + _OTHER_REGISTERS[kind][config.tiles_per_warp]  # of a thread
    if kind == "mma" and config.tiles_per_warp > 1 and problem.w_kind.format.is_codebook:
        needed += _TABLE_REGISTERS
    columns = config.tiles_per_warp * config.tile_m
    if kind == "mma" and columns > 32 and not _scales(config, problem):
        needed += _BLOCK_REGISTERS
    if needed > _MOST_REGISTERS:
        return 0
    registers = problem.device.registers_per_sm // (config.threads * needed)
    most = min(memory, registers, _MOST_WARPS * 32 // config.threads)
    meet = config.n_warps > 1 and config.k_warps > 1 and not config.wgmma  # those that share k
    return min(most, _SM_BARRIERS // _CTA_BARRIERS) if meet else most


def _splits(config: Config, problem: Problem) -> Iterator[int]:
    """Of k, while every warp has a stage; they meet in a cluster."""
    most = _SPLITS[-1] if problem.device.clusters else 1
    share = config.k_warps * config.tile_k
    return (each for each in _SPLITS if each == 1 or (each <= most and each * share <= problem.k))


def _have_places(config: Config, problem: Problem, splits: int, ctas_per_sm: int) -> bool:
    """Whether all clusters run at once: one that must wait doubles the time."""
    if splits == 1:
        return True
    clusters = config.output_tiles(problem) * matrices(problem)
    return clusters <= ctas_per_sm * cluster_places(problem.device, splits)


def ctas(config: Config, problem: Problem, splits: int | None = None) -> float:
    split = config.splits if splits is None else splits
    return config.output_tiles(problem) * split * problem.busy_matrices


def ctas_of_busiest(config: Config, problem: Problem, splits: int | None = None) -> int:
    """CTAs of the SM that has most, if all have a place at once."""
    return max(1, ceil(ctas(config, problem, splits) / problem.device.sms))


def padded_shared(problem: Problem, config: Config) -> int:
    """Bytes of shared memory to ask for: what a CTA needs, or so much more that an SM holds
    `config.ctas_per_sm` of them and no other.

    CTAs of the next kernel start early (PDL), and take whatever place there is: several of them on
    one SM while other SMs have none. Of 226 pairs of launches on an H200 that differed in room for
    one or two CTAs more than a kernel has, those with more room took 1.2 times as long in the
    median, and in six cases less.
    """
    needed = config.shared_bytes(problem)
    if not problem.device.pdl:
        return needed
    of_all = problem.device.shared_per_sm
    return max(needed, of_all // (config.ctas_per_sm + 1) - _RESERVED + 16)
