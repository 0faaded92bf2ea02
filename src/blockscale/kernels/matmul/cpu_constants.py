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
        decode={2: 4.665, 3: 5.248, 4: 4.369, 5: 5.606, 6: 5.392, 8: 5.467},
        look_up={2: 0.02063, 4: 0.004045},
        scale=0.08423,
        store=2.134,
        stream={1: 1.126, 2: 2.24, 4: 4.699},
        gemm={1: 1.742, 2: 2.411, 4: 3.961},
        int8={1: 2.189, 2: 3.628, 4: 6.884, 8: 13.28},
        x=5.054,
        x_int8=0.9537,
        result=14.24,
        activation=29.85,
        start=9.924e-06,
        start_int8=2.958e-06,
    ),
    "dotprod": Constants(
        decode={2: 4.236, 3: 4.759, 4: 3.722, 5: 5.28, 6: 5.218, 8: 5.163},
        look_up={2: 0.1219, 4: 0.001349},
        scale=25.04,
        store=1.703,
        stream={1: 1.257, 2: 2.086, 4: 4.031},
        gemm={1: 2.475, 2: 2.833, 4: 3.761},
        int8={1: 0.03605, 2: 0.5614, 4: 1.751, 8: 3.704},
        x=38.38,
        x_int8=22.52,
        result=0.1727,
        activation=48.35,
        start=8.589e-06,
        start_int8=6.741e-06,
        slice_codes={2: 1.443, 3: 1.847, 4: 1.38, 5: 2.664, 6: 2.571},
        slices={1: 0.5646, 2: 1.378, 4: 3.231},
        x_slices=103.0,
    ),
}
