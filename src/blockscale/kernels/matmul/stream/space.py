"""Every legal Config of the stream kernel for a problem: what can run, with no word of speed.

`is_legal` has the rules of the kernel and of the hardware. `every_config` enumerates a grid under
them; values that were never within 2% of the best in some 6,000 timings are not in the grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from blockscale.formats import Float
from blockscale.kernels.matmul.stream.config import Config
from blockscale.kernels.matmul.stream.facts import MMA_ROWS, WGMMA_ROWS, Facts
from blockscale.kernels.matmul.stream.occupancy import fits, occupancies

_MMA_WARPS = ((1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2), (2, 8), (4, 4), (7, 2))
_WGMMA_WARPS = ((4, 1), (4, 2), (8, 1), (4, 4), (8, 2), (16, 1))
_STAGES = ((2, 256), (3, 256), (3, 128), (2, 128))  # number, k of each


def every_config(facts: Facts) -> Iterator[Config]:
    tables = (False, True) if facts.format.is_codebook else (False,)
    for (tile_m, wgmma), table in product(_rows_at_a_time(facts), tables):
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
            if _is_computable(shape, facts):
                yield from occupancies(shape, facts)


def _rows_at_a_time(facts: Facts) -> Iterator[tuple[int, bool]]:
    """All rows in one turn where that can be; few may leave columns idle. Where `wgmma` can take
    more than 16 rows, `mma` never was faster."""
    rows = facts.rows_of_most
    enough = [each for each in MMA_ROWS if each >= rows]
    # Up to 4 rows of codes are decoded by the kernel itself, with more by a kernel of its own.
    few = 4 if facts.coded and rows <= 4 else 8
    mma = [each for each in enough if each <= max(few, enough[0])] if enough else [MMA_ROWS[-1]]
    if not facts.takes_wgmma:  # where so many do not fit, fewer take several turns
        mma += [each for each in (8, 16, 32) if each < mma[0]]
        yield from ((each, False) for each in mma)
        return
    # The least with which a few ragged groups alone take one more turn, where it is not enough for
    # all: 8, since fewer rows take `mma` as long, or 16. Larger ones were timed on two problems,
    # and lost.
    nearly = [each for each in (8, 16) if facts.rows_of_many <= each < rows]
    mma += nearly[:1]
    yield from ((each, False) for each in mma if each <= 16)
    if few == 8:
        wgmma = [each for each in WGMMA_ROWS if each >= rows][:2] or [WGMMA_ROWS[-1]]
        wgmma += [each for each in nearly if each in WGMMA_ROWS]
        yield from ((each, True) for each in wgmma)


def is_legal(config: Config, facts: Facts) -> bool:
    return _is_computable(config, facts) and fits(config, facts)


def _is_computable(config: Config, facts: Facts) -> bool:
    if config.algorithm == "few":
        element = facts.format.element
        if isinstance(element, Float) and element.specials == "ieee":
            return False  # side by side, an infinite weight would meet the zeros of other blocks
        if config.tile_k < 8 * facts.format.block:
            return False  # eight blocks stand side by side
    many = config.tile_m > 32 and config.tiles_per_warp > 1 and not config.wgmma
    if many and not facts.scales_weights(config.tile_m):
        return False  # there are no registers for the sums of blocks of two tiles
    return not (facts.gated and config.tiles_per_warp % 2)  # tiles alternate between gate and up
