"""How long the native CPU products will take: a prediction from counted work.

Weights go by tiles of 16 rows, k by chunks of 32, rows of x by row tiles of 8, 4, 2 or 1. `stream`
and `slices`, and `int8` on x86, decode every weight once for each row tile and multiply it at once;
`gemm` decodes it once, stores it, and loads it for each row tile. The unit of work is a
multiply-add at the rate of a large float32 product: constants say how many of them a step costs,
and a `Machine` turns them into seconds. Memory and arithmetic overlap in part: a p-norm joins them.

The constants are fitted by `bench.fit_cpu` to stored sweeps, one set for each instruction set.
Where no machine was at hand, on ARM with i8mm or bf16, they are instructions that an emulator
counted, each taken for as much as the `fmla` of a large float32 product, which is four
multiply-adds: no time was measured (`basis`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from blockscale.kernels.matmul.cpu_constants import CONSTANTS, FITTED_ON, Constants, Machine
from blockscale.kernels.matmul.cpu_counted import COUNTED
from blockscale.kernels.matmul.cpu_slices import weight_slices
from blockscale.problem import Problem

PREDICTED = ("stream", "gemm", "slices", "int8", "bfmmla")  # algorithms with constants
_TILE_N, _CHUNK = 16, 32
_OVERLAP = 3.0  # exponent of the p-norm: halfway between a sum and a maximum, by the sweeps
_TIE = 1.03  # times that are nearer to each other than two measurements of one thing are
ARM = ("neon", "dotprod", "i8mm", "bf16")
# Of `amx`, all but the products by tiles is the code of avx512.
FITTED_AS = {"amx": "avx512"}


@dataclass(frozen=True)
class Work:
    """What a product does, counted: all that a prediction needs to know of a problem."""

    algorithm: str
    bits: int
    block: int
    k: int  # whole chunks
    tiles: int  # of 16 rows, of all matrices that have rows of x
    abreast: int  # tiles that one thread decodes side by side
    row_tiles: tuple[int, ...]  # of one matrix
    turns: int  # how often a weight is decoded
    matrices: float  # that have rows of x
    branches: int
    rows: float  # of all matrices
    n: int
    weight_bytes: float
    weight_slices: int = 1  # that each row of x is multiplied by


def row_tiles(rows: int, most: int) -> tuple[int, ...]:
    """As csrc/products/row_tiles.h takes them."""
    taken: list[int] = []
    while rows > 0:
        taken.append(most if rows > 4 else 4 if rows > 2 else rows)
        rows -= taken[-1]
    return tuple(taken)


def count(problem: Problem, algorithm: str, isa: str) -> Work:
    format, busy = problem.w_kind.format, problem.busy_matrices
    wide, on_arm = isa in ("avx512", "amx"), isa in ARM
    eight = wide or (on_arm and algorithm in ("int8", "bfmmla"))
    each = problem.rows / busy if busy else 0.0
    branches = 2 if problem.gated else 1
    stored = format.element.bits / 8 + format.scale.bits / 8 / format.block
    taken = row_tiles(ceil(each), 8 if eight else 4)
    staged = algorithm == "gemm" or (on_arm and algorithm == "int8")  # what is decoded is kept
    return Work(
        algorithm=algorithm,
        bits=format.element.bits,
        block=format.block,
        k=ceil(problem.k / _CHUNK) * _CHUNK,
        tiles=round(ceil(problem.n / _TILE_N) * busy),
        abreast=2 if wide and algorithm == "gemm" else 1,
        row_tiles=taken,
        turns=min(1, len(taken)) if staged else len(taken),
        matrices=busy,
        branches=branches,
        rows=problem.rows,
        n=problem.n,
        weight_bytes=busy * branches * problem.n * problem.k * stored,
        weight_slices=weight_slices(format, problem.k) if algorithm == "slices" else 1,
    )


@dataclass(frozen=True)
class Cost:
    """Seconds, and what they are made of."""

    seconds: float
    bounds: dict[str, float]  # each alone

    @property
    def bound_by(self) -> str:
        return max(self.bounds, key=lambda name: self.bounds[name])


def predict(work: Work, constants: Constants, machine: Machine) -> Cost:
    one = 2 * machine.threads / machine.flops_per_s  # seconds of a multiply-add on one thread
    items = ceil(work.tiles / work.abreast)
    shares = ceil(items / machine.threads) if items else 0  # of the thread that has most
    weights = shares * work.abreast * _TILE_N * work.k * work.branches
    decode, multiply = _steps(work, constants)
    padded = sum(work.row_tiles) * work.matrices
    arrange = {"int8": constants.x_int8, "slices": constants.x_slices}.get(
        work.algorithm, constants.x
    )
    outputs = work.rows * work.n * work.branches
    bounds = {
        "memory": work.weight_bytes / machine.read_bytes_per_s,
        "decoding": weights * decode * one,
        "multiply-adds": weights * multiply * one,
        "rows of x": padded * work.k * arrange * one / machine.threads,
        "results": outputs
        * (constants.activation if work.branches == 2 else constants.result)
        * one
        / machine.threads,
        "start": constants.start + (constants.start_int8 if work.algorithm == "int8" else 0.0),
    }
    overlapping = (bounds["memory"], bounds["decoding"] + bounds["multiply-adds"])
    joined = sum(each**_OVERLAP for each in overlapping) ** (1 / _OVERLAP)
    rest = bounds["rows of x"] + bounds["results"] + bounds["start"]
    return Cost(joined + rest, bounds)


def _steps(work: Work, constants: Constants) -> tuple[float, float]:
    """Of one weight: decoding, and everything that is done for rows of x."""
    of_codes, of_rows = {
        "stream": (constants.decode, constants.stream),
        "gemm": (constants.decode, constants.gemm),
        "slices": (constants.slice_codes, constants.slices),
        "int8": (constants.look_up, constants.int8),
        "bfmmla": (constants.shorten, constants.bfmmla),
    }[work.algorithm]
    once = of_codes[work.bits] + constants.scale / min(work.block, _CHUNK)
    if work.algorithm == "gemm":
        once += constants.store
    return once * work.turns, work.weight_slices * sum(of_rows[each] for each in work.row_tiles)


def ranked(times: dict[str, float]) -> list[str]:
    """Fastest first; `stream`, which needs no memory for decoded weights, where it is a tie."""
    return sorted(times, key=lambda name: times[name] / (_TIE if name == "stream" else 1))


def constants_of(isa: str, fitted: Mapping[str, Constants] = CONSTANTS) -> Constants:
    """Those fitted to times, where there are some."""
    known = FITTED_AS.get(isa, isa)
    return fitted[known] if known in fitted else COUNTED[known]


def swept_machine(isa: str) -> Machine:
    """The one that constants were fitted on; of counted ones, the nearest that was swept."""
    known = FITTED_AS.get(isa, isa)
    return FITTED_ON[known] if known in FITTED_ON else FITTED_ON["dotprod"]


def basis(isa: str) -> str:
    """What a prediction rests on, where that is no measurement of such a machine."""
    timed = FITTED_AS.get(isa, isa) in CONSTANTS
    return "" if timed else f"by counted instructions: nothing was timed on {isa}"


def cost(problem: Problem, algorithm: str, isa: str, machine: Machine) -> Cost:
    return predict(count(problem, algorithm, isa), constants_of(isa), machine)
