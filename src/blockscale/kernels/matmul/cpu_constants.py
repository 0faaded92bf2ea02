"""The constants of kernels/matmul/cpu_cost.py, fitted by `bench.fit_cpu` to bench/results/sweeps:
of each instruction set, and the machine that was swept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Machine(NamedTuple):
    """What a prediction takes from the machine, of all threads together."""

    threads: int
    read_bytes_per_s: float
    flops_per_s: float  # of a large float32 product
    swept: str = ""  # which one, and when


@dataclass(frozen=True)
class Constants:
    """Of one instruction set: how many multiply-adds of a large float32 product a step costs."""

    decode: dict[int, float]  # a weight, by the bits of its code
    look_up: dict[int, float]  # the same for `int8`
    scale: float  # a scale of 16 rows, for each of them
    store: float  # a decoded weight
    stream: dict[int, float]  # a weight by a row tile, by its rows
    gemm: dict[int, float]
    int8: dict[int, float]
    x: float  # a number of x on its way into its row tile
    x_int8: float  # the same, rounded
    result: float  # a sum on its way out
    activation: float  # the same where gate and up meet
    start: float  # seconds of a call
    start_int8: float = 0.0  # more, where x is rounded first
    shorten: dict[int, float] = field(default_factory=dict)  # `decode` to bfloat16, for `bfmmla`
    bfmmla: dict[int, float] = field(default_factory=dict)
    slice_codes: dict[int, float] = field(default_factory=dict)  # `look_up` of `slices`
    slices: dict[int, float] = field(default_factory=dict)  # for each slice of the weight
    x_slices: float = 0.0  # `x` of `slices`


_SWEPT = (
    (
        Machine(
            threads=2,
            read_bytes_per_s=16770000000.0,
            flops_per_s=157000000000.0,
            swept="Intel(R) Xeon(R) Processor @ 2.50GHz, 2026-11-16",
        ),
        ("scalar", "avx2", "avx512"),
    ),
    (
        Machine(
            threads=2,
            read_bytes_per_s=36340000000.0,
            flops_per_s=68770000000.0,
            swept="Neoverse-N1, 2026-11-18",
        ),
        ("neon", "dotprod"),
    ),
)
FITTED_ON = {isa: machine for machine, isas in _SWEPT for isa in isas}

CONSTANTS = {
    "scalar": Constants(
        decode={2: 53.88, 3: 74.83, 4: 69.15, 5: 52.42, 6: 91.88, 8: 43.46},
        look_up={2: 12.61, 4: 8.423},
        scale=6.011,
        store=13.71,
        stream={1: 16.72, 2: 18.89, 4: 51.11},
        gemm={1: 1.039, 2: 3.043, 4: 29.25},
        int8={1: 98.22, 2: 484.6, 4: 176.9},
        x=1392.0,
        x_int8=20680.0,
        result=1298.0,
        activation=3145.0,
        start=1.425e-05,
    ),
    "avx2": Constants(
        decode={2: 2.957, 3: 3.7, 4: 11.37, 5: 81.56, 6: 77.51, 8: 18.04},
        look_up={2: 2.129, 4: 0.9484},
        scale=38.18,
        store=6.639,
        stream={1: 1.142, 2: 6.17, 4: 10.3},
        gemm={1: 2.777, 2: 5.875, 4: 10.99},
        int8={1: 1.131, 2: 2.263, 4: 7.243},
        x=172.0,
        x_int8=10.23,
        result=267.7,
        activation=435.2,
        start=9.995e-06,
    ),
    "avx512": Constants(
        decode={2: 4.688, 3: 2.724, 4: 3.483, 5: 2.48, 6: 5.331, 8: 8.129},
        look_up={2: 0.4019, 4: 0.8025},
        scale=23.29,
        store=4.713,
        stream={1: 0.8107, 2: 2.483, 4: 5.766, 8: 12.96},
        gemm={1: 2.518, 2: 3.943, 4: 7.699, 8: 15.32},
        int8={1: 0.3731, 2: 4.0, 4: 3.3, 8: 3.9},
        x=4.58,
        x_int8=4.171,
        result=46.41,
        activation=747.4,
        start=7.974e-06,
    ),
    "neon": Constants(
        decode={2: 4.669, 3: 5.252, 4: 4.373, 5: 5.61, 6: 5.397, 8: 5.472},
        look_up={2: 0.02292, 4: 0.003918},
        scale=0.07973,
        store=2.133,
        stream={1: 1.128, 2: 2.24, 4: 4.693},
        gemm={1: 1.745, 2: 2.413, 4: 3.958},
        int8={1: 2.182, 2: 3.62, 4: 6.872, 8: 13.27},
        x=5.585,
        x_int8=0.8389,
        result=14.57,
        activation=30.22,
        start=9.677e-06,
        start_int8=3.61e-06,
    ),
    "dotprod": Constants(
        decode={2: 4.239, 3: 4.762, 4: 3.726, 5: 5.283, 6: 5.221, 8: 5.166},
        look_up={2: 0.1466, 4: 0.001389},
        scale=24.9,
        store=1.704,
        stream={1: 1.257, 2: 2.087, 4: 4.032},
        gemm={1: 2.474, 2: 2.833, 4: 3.761},
        int8={1: 0.0543, 2: 0.5604, 4: 1.75, 8: 3.691},
        x=38.32,
        x_int8=24.25,
        result=0.1045,
        activation=48.32,
        start=8.638e-06,
        start_int8=6.507e-06,
        slice_codes={2: 1.448, 3: 1.852, 4: 1.387, 5: 2.669, 6: 2.575},
        slices={1: 0.5637, 2: 1.377, 4: 3.23},
        x_slices=102.9,
    ),
}
