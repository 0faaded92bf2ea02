"""The constants of kernels/matmul/cpu_cost.py for CPUs of ARM that nobody timed, made by
`bench.fit_arm` of instructions that an emulator counted (tests/native/arm_sweep.json).
"""

from __future__ import annotations

from blockscale.kernels.matmul.cpu_constants import Constants

COUNTED = {
    "i8mm": Constants(
        decode={2: 4.525, 3: 5.416, 4: 4.037, 5: 6.164, 6: 4.971, 8: 3.249},
        look_up={2: 0.05265, 4: 0.001354},
        scale=20.24,
        store=1.761,
        stream={1: 1.016, 2: 2.692, 4: 4.579},
        gemm={1: 2.547, 2: 3.855, 4: 4.906},
        int8={1: 0.7464, 2: 0.9568, 4: 0.636, 8: 1.167},
        x=31.74,
        x_int8=129.4,
        result=0.1942,
        activation=48.35,
        start=8.589e-06,
        start_int8=6.741e-06,
        slice_codes={2: 3.031, 3: 3.662, 4: 2.229, 5: 3.667, 6: 2.969},
        slices={1: 0.03213, 2: 0.6436, 4: 1.743},
        x_slices=94.85,
    ),
    "bf16": Constants(
        decode={2: 4.35, 3: 5.323, 4: 3.785, 5: 6.113, 6: 4.794, 8: 3.086},
        look_up={2: 0.1231, 4: 0.001306},
        scale=30.73,
        store=1.624,
        stream={1: 0.99, 2: 2.727, 4: 5.01},
        gemm={1: 2.667, 2: 4.016, 4: 5.482},
        int8={1: 0.4806, 2: 0.747, 4: 0.7726, 8: 1.949},
        x=27.34,
        x_int8=123.9,
        result=0.2094,
        activation=48.35,
        start=8.589e-06,
        start_int8=6.741e-06,
        shorten={2: 1.077, 3: 1.765, 4: 0.9247, 5: 2.183, 6: 2.273, 8: 2.564},
        bfmmla={1: 0.8839, 2: 0.575, 4: 1.05, 8: 2.484},
        slice_codes={2: 2.868, 3: 3.576, 4: 1.978, 5: 3.572, 6: 2.867},
        slices={1: 0.03736, 2: 0.6582, 4: 1.949},
        x_slices=89.54,
    ),
}
