"""The constants of kernels/matmul/cpu_cost.py for CPUs of ARM that nobody timed, made by
`bench.fit_arm` of instructions that an emulator counted (tests/native/arm_sweep.json).
"""

from __future__ import annotations

from blockscale.kernels.matmul.cpu_constants import Constants

COUNTED = {
    "i8mm": Constants(
        decode={2: 4.414, 3: 5.301, 4: 3.755, 5: 9.898, 6: 7.415, 8: 3.112},
        look_up={2: 0.1238, 4: 0.01532},
        scale=21.33,
        store=2.095,
        stream={1: 0.9215, 2: 3.237, 4: 6.007},
        gemm={1: 1.891, 2: 4.006, 4: 6.629},
        int8={1: 0.6135, 2: 1.376, 4: 2.017, 8: 3.947},
        x=23.11,
        x_int8=118.1,
        result=1.375,
        activation=65.41,
        start=8.331e-06,
        slices={1: 1.722, 2: 3.318, 4: 6.349},
        x_slices=245.3,
    ),
    "bf16": Constants(
        decode={2: 3.926, 3: 4.857, 4: 3.176, 5: 9.364, 6: 7.003, 8: 2.65},
        look_up={2: 0.2139, 4: 0.008783},
        scale=31.08,
        store=2.119,
        stream={1: 0.8182, 2: 3.076, 4: 5.981},
        gemm={1: 1.773, 2: 3.817, 4: 6.545},
        int8={1: 0.01313, 2: 0.7366, 4: 1.496, 8: 3.463},
        x=22.31,
        x_int8=116.4,
        result=1.294,
        activation=65.41,
        start=8.331e-06,
        shorten={2: 0.9551, 3: 1.635, 4: 0.743, 5: 4.154, 6: 5.167, 8: 2.403},
        bfmmla={1: 0.5088, 2: 0.6231, 4: 1.573, 8: 3.426},
        slices={1: 1.068, 2: 2.657, 4: 5.357},
        x_slices=246.4,
    ),
}
