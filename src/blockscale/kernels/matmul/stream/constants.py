"""The constants of kernels/matmul/stream/cost.py, fitted by `bench.fit_stream`.

To bench/results/sweeps, all but draw 4: NVIDIA H200, driver 580.159.04, 2026-11-16.
Cycles are of an SM, times are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """Of one way to multiply."""

    decode: dict[str, float]  # issue slots of a warp for 16 rows by 16 k, by element
    looked_up: dict[str, float]  # the same by a table in shared memory
    columns: float  # issue slots for 8 columns of these
    stage: float  # issue slots for a stage of k, whatever is in it
    chain: float  # how much longer a warp takes alone than it issues
    meeting: float  # cycles that a warp waits for others after a stage
    load: float  # cycles from asking for a stage to having it
    l2: float  # how much of the L2's rate x comes at
    start: float  # of a CTA, from its launch to its first stage and from its last sum to its end
    hidden: float  # share of that which idle SMs hide
    tail: float  # how much of a last round's idle places is lost


@dataclass(frozen=True)
class Shared:
    """Of all ways."""

    copy_x: float  # issue slots for 512 bytes of x by `cp.async`
    decode_x: float  # more where codes are decoded on the way
    meeting: float  # how much longer a stage takes for each warp that shares its x
    steps_overlap: float  # exponents of p-norms
    overlap: float
    warp: float  # of starting a warp
    reduce: float  # cycles for 64 bytes of sums that warps share
    cluster: float  # of meeting in a cluster
    cluster_sums: float  # cycles for 14 bytes of sums of other CTAs
    fill_table: float  # of the first CTA on an SM
    refill_table: float  # of each after it
    find_group: float
    gate: float
    output: float  # of one number
    activation: float  # of one gated number


ALGORITHMS = {
    "few": Algorithm(
        decode={
            "e2m1": 24.67,
            "e2m3": 36.49,
            "e4m3": 31,
            "codebook2": 28.5,
            "codebook3": 27.59,
            "codebook4": 31.36,
            "codebook5": 53.56,
        },
        looked_up={"codebook2": 22.57, "codebook3": 23.59, "codebook4": 24.2, "codebook5": 31.71},
        columns=0.01,
        stage=49.14,
        chain=1.04,
        meeting=7.044,
        load=191.1,
        l2=0.484182,
        start=1.758,
        hidden=0.3669,
        tail=0.5227,
    ),
    "mma": Algorithm(
        decode={
            "e2m1": 20.61,
            "e2m3": 33.48,
            "e4m3": 23.69,
            "codebook2": 23.39,
            "codebook3": 22.74,
            "codebook4": 26.17,
            "codebook5": 49.24,
        },
        looked_up={"codebook2": 18.48, "codebook3": 21.02, "codebook4": 19.64, "codebook5": 27.16},
        columns=3.935,
        stage=76.14,
        chain=1.054,
        meeting=67.38,
        load=30.06,
        l2=0.787091,
        start=1.509,
        hidden=0.3547,
        tail=0.5598,
    ),
    "wgmma": Algorithm(
        decode={
            "e2m1": 27.23,
            "e2m3": 48.87,
            "e4m3": 34.66,
            "codebook2": 28.9,
            "codebook3": 29.69,
            "codebook4": 34.27,
            "codebook5": 56.62,
        },
        looked_up={"codebook2": 19.64, "codebook3": 22.94, "codebook4": 25.18, "codebook5": 35.02},
        columns=1.325,
        stage=85.43,
        chain=1.363,
        meeting=0.397,
        load=2062,
        l2=2.085455,
        start=1.383,
        hidden=0.488,
        tail=0.7922,
    ),
}
SHARED = Shared(
    copy_x=55.59,
    decode_x=71.36,
    meeting=0.01958,
    steps_overlap=2.015,
    overlap=3.054,
    warp=0.009382,
    reduce=2.389,
    cluster=0.7325,
    cluster_sums=0.9536,
    fill_table=0.2081,
    refill_table=1.558,
    find_group=2.884,
    gate=0.6445,
    output=9.275e-05,
    activation=0.0001506,
)
