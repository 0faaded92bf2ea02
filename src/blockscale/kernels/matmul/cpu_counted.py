"""The constants of kernels/matmul/cpu_cost.py for CPUs of ARM that nobody timed, made by
`bench.fit_arm` of instructions that an emulator counted (tests/native/arm_sweep.json).
"""

from __future__ import annotations

from blockscale.kernels.matmul.cpu_constants import Constants

COUNTED = {
    "i8mm": Constants(
        decode={2: 4.33, 3: 5.259, 4: 3.696, 5: 9.854, 6: 7.368, 8: 3.066},
        look_up={2: 0.5999, 4: 0.5017},
        scale=22.41,
        store=2.132,
        stream={1: 0.8989, 2: 3.235, 4: 6.007},
        gemm={1: 1.829, 2: 3.973, 4: 6.038},
        int8={1: 0.007957, 2: 0.784, 4: 1.42, 8: 3.447},
        x=23.16,
        x_int8=118.3,
        result=0.419,
        activation=7.195,
        start=6.683e-06,
        slices={1: 1.093, 2: 2.692, 4: 5.739},
        x_slices=246.1,
    ),
    "bf16": Constants(
        decode={2: 3.937, 3: 4.891, 4: 3.213, 5: 9.379, 6: 7.006, 8: 2.674},
        look_up={2: 0.195, 4: 0.008297},
        scale=30.36,
        store=2.121,
        stream={1: 0.8173, 2: 3.084, 4: 5.965},
        gemm={1: 1.779, 2: 3.834, 4: 5.967},
        int8={1: 0.005739, 2: 0.7334, 4: 1.466, 8: 3.402},
        x=22.34,
        x_int8=116.5,
        result=0.4092,
        activation=7.195,
        start=6.683e-06,
        shorten={2: 0.9417, 3: 1.632, 4: 0.7387, 5: 4.154, 6: 5.182, 8: 2.402},
        bfmmla={1: 0.5035, 2: 0.6212, 4: 1.56, 8: 3.44},
        slices={1: 1.048, 2: 2.629, 4: 5.325},
        x_slices=246.8,
    ),
}
