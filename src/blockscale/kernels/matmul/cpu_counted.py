"""The constants of kernels/matmul/cpu_cost.py for CPUs of ARM that nobody timed, made by
`bench.fit_arm` of instructions that an emulator counted (tests/native/arm_sweep.json).
"""

from __future__ import annotations

from blockscale.kernels.matmul.cpu_constants import Constants

COUNTED = {
    "i8mm": Constants(
        decode={2: 4.483, 3: 5.379, 4: 3.963, 5: 6.17, 6: 4.95, 8: 3.205},
        look_up={2: 0.07606, 4: 0.004255},
        scale=21.4,
        store=1.72,
        stream={1: 1.038, 2: 2.706, 4: 4.446},
        gemm={1: 2.629, 2: 3.925, 4: 4.8},
        int8={1: 0.6919, 2: 0.9224, 4: 0.4341, 8: 0.8616},
        x=32.29,
        x_int8=130.0,
        result=0.2789,
        activation=39.82,
        start=6.98e-08,
        slice_codes={2: 3.036, 3: 3.653, 4: 2.321, 5: 3.686, 6: 2.99},
        slices={1: 0.01472, 2: 0.6011, 4: 1.763},
        x_slices=96.06,
    ),
    "bf16": Constants(
        decode={2: 4.231, 3: 5.189, 4: 3.654, 5: 6.043, 6: 4.667, 8: 2.957},
        look_up={2: 0.1292, 4: 0.003854},
        scale=30.95,
        store=1.647,
        stream={1: 0.9628, 2: 2.73, 4: 5.062},
        gemm={1: 2.659, 2: 4.014, 4: 5.489},
        int8={1: 0.3387, 2: 0.662, 4: 0.6737, 8: 1.857},
        x=25.58,
        x_int8=122.0,
        result=0.3371,
        activation=39.82,
        start=6.98e-08,
        shorten={2: 0.9979, 3: 1.683, 4: 0.8424, 5: 2.141, 6: 2.211, 8: 2.489},
        bfmmla={1: 0.7681, 2: 0.5124, 4: 1.054, 8: 2.51},
        slice_codes={2: 2.784, 3: 3.461, 4: 2.008, 5: 3.486, 6: 2.8},
        slices={1: 0.01134, 2: 0.6236, 4: 2.052},
        x_slices=88.36,
    ),
}
