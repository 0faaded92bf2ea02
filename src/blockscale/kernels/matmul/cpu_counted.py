"""The constants of kernels/matmul/cpu_cost.py for CPUs of ARM that nobody timed, made by
`bench.fit_arm` of instructions that an emulator counted (tests/native/arm_sweep.json).
"""

from __future__ import annotations

from blockscale.kernels.matmul.cpu_constants import Constants

COUNTED = {
    "neon": Constants(
        decode={2: 4.5, 3: 5.498, 4: 4.234, 5: 10.11, 6: 7.623, 8: 3.305},
        look_up={2: 0.9504, 4: 1.159},
        scale=12.42,
        store=2.147,
        stream={1: 0.94, 2: 3.018, 4: 5.439},
        gemm={1: 1.908, 2: 3.764, 4: 6.025},
        int8={1: 0.755, 2: 2.162, 4: 4.695, 8: 10.91},
        x=22.49,
        x_int8=117.3,
        result=162.8,
        activation=435.2,
        start=9.995e-06,
    ),
    "dotprod": Constants(
        decode={2: 4.272, 3: 5.253, 4: 3.797, 5: 9.863, 6: 7.378, 8: 3.062},
        look_up={2: 0.3633, 4: 0.292},
        scale=24.31,
        store=2.033,
        stream={1: 0.8609, 2: 3.052, 4: 5.735},
        gemm={1: 1.929, 2: 3.909, 4: 6.44},
        int8={1: 0.2492, 2: 0.7908, 4: 1.526, 8: 3.177},
        x=22.04,
        x_int8=116.2,
        result=72.3,
        activation=435.2,
        start=9.995e-06,
        slices={1: 1.1, 2: 2.2, 4: 4.4},
        x_slices=60.0,
    ),
    "i8mm": Constants(
        decode={2: 4.29, 3: 5.25, 4: 3.782, 5: 9.86, 6: 7.375, 8: 3.059},
        look_up={2: 0.3633, 4: 0.2951},
        scale=24.49,
        store=2.029,
        stream={1: 0.8599, 2: 3.045, 4: 5.727},
        gemm={1: 1.933, 2: 3.904, 4: 6.435},
        int8={1: 0.241, 2: 0.9612, 4: 1.553, 8: 3.021},
        x=22.05,
        x_int8=116.3,
        result=72.91,
        activation=435.2,
        start=9.995e-06,
        slices={1: 1.1, 2: 2.2, 4: 4.4},
        x_slices=60.0,
    ),
    "bf16": Constants(
        decode={2: 3.935, 3: 4.895, 4: 3.331, 5: 9.414, 6: 7.038, 8: 2.676},
        look_up={2: 0.1816, 4: 0.03646},
        scale=34.35,
        store=1.968,
        stream={1: 0.7599, 2: 2.896, 4: 5.696},
        gemm={1: 1.922, 2: 3.811, 4: 6.436},
        int8={1: 0.03482, 2: 0.7227, 4: 1.462, 8: 2.982},
        x=21.93,
        x_int8=115.2,
        result=20.18,
        activation=435.2,
        start=9.995e-06,
        shorten={2: 0.9371, 3: 1.636, 4: 0.8095, 5: 4.224, 6: 5.247, 8: 2.38},
        bfmmla={1: 0.5388, 2: 0.5854, 4: 1.577, 8: 3.334},
        slices={1: 1.1, 2: 2.2, 4: 4.4},
        x_slices=60.0,
    ),
}
