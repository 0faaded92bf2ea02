"""The constants of kernels/stream_cost.py, fitted by `bench.fit_stream`.

To draws 1 to 3 and the recorded shapes of bench/results/sweeps: NVIDIA H200, driver 580.159.04,
2026-11-16. Cycles are of an SM, times are microseconds.
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
    l2: float  # terabytes of x a second
    start: float  # of a CTA, from its launch to its first stage and from its last sum to its end
    hidden: float  # share of that which idle SMs hide
    tail: float  # how much of a last round's idle places is lost


@dataclass(frozen=True)
class Shared:
    """Of all ways."""

    copy_x: float  # issue slots for 512 bytes of x by `cp.async`
    meeting: float  # how much longer a stage takes for each warp that shares its x
    steps_overlap: float  # exponents of p-norms
    overlap: float
    warp: float  # of starting a warp
    reduce: float  # cycles for 64 bytes of sums that warps share
    cluster: float  # of meeting in a cluster
    cluster_sums: float  # cycles for 14 bytes of sums of other CTAs
    fill_table: float
    find_group: float
    gate: float
    output: float  # of one number
    activation: float  # of one gated number


ALGORITHMS = {
    "few": Algorithm(
        decode={
            "e2m1": 24.67,
            "e2m3": 36.25,
            "e4m3": 31.3,
            "codebook2": 28.58,
            "codebook3": 28.06,
            "codebook4": 31.6,
            "codebook5": 53.81,
        },
        looked_up={"codebook2": 23.97, "codebook3": 24.17, "codebook4": 24.48, "codebook5": 29.1},
        columns=0.01,
        stage=40.15,
        chain=0.9747,
        meeting=31.57,
        load=224.4,
        l2=2.672,
        start=1.762,
        hidden=0.3565,
        tail=0.5331,
    ),
    "mma": Algorithm(
        decode={
            "e2m1": 20.13,
            "e2m3": 33.12,
            "e4m3": 22.94,
            "codebook2": 22.66,
            "codebook3": 22.17,
            "codebook4": 26,
            "codebook5": 47.84,
        },
        looked_up={"codebook2": 19.5, "codebook3": 20.62, "codebook4": 19.48, "codebook5": 26.67},
        columns=4.11,
        stage=74.1,
        chain=1.057,
        meeting=94.95,
        load=60.61,
        l2=4.416,
        start=1.51,
        hidden=0.3524,
        tail=0.5851,
    ),
    "wgmma": Algorithm(
        decode={
            "e2m1": 27.06,
            "e2m3": 48.8,
            "e4m3": 34.47,
            "codebook2": 28.73,
            "codebook3": 29.73,
            "codebook4": 34.22,
            "codebook5": 55.52,
        },
        looked_up={"codebook2": 20.11, "codebook3": 23.58, "codebook4": 25.06, "codebook5": 36.87},
        columns=1.238,
        stage=85.29,
        chain=1.402,
        meeting=0.5846,
        load=2096,
        l2=11.81,
        start=1.421,
        hidden=0.48,
        tail=0.8387,
    ),
}
SHARED = Shared(
    copy_x=55.73,
    meeting=0.01957,
    steps_overlap=2.067,
    overlap=2.893,
    warp=0.009625,
    reduce=2.319,
    cluster=0.7081,
    cluster_sums=0.9742,
    fill_table=0.2095,
    find_group=2.742,
    gate=0.6427,
    output=9.131e-05,
    activation=0.0001591,
)
