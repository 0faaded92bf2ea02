"""Block-scaled GEMMs of all verbs compile for their GPUs: the instructions meant, and no spills."""

import pytest

import blockscale as bs
from blockscale.kernels.matmul import sm100_gemm, sm120_gemm
from blockscale.kernels.matmul.sm100_gemm.config import Config as PairConfig
from blockscale.kernels.matmul.sm120_gemm.config import Config as WarpConfig
from blockscale.problem import Problem
from blockscale.runtime import gpu
from blockscale.runtime.cuda import cubin, load_nvrtc
from runtime import cubins

pytestmark = [
    pytest.mark.skipif(isinstance(load_nvrtc(), str), reason=str(load_nvrtc())),
    pytest.mark.skipif(cubins.disassembler() is None, reason="no cuobjdump"),
]
GATED = {"gated": True, "activation": "silu"}
RAGGED = {"groups": 8, "ragged": True}


def machine_code(kernel, device, config, format, out, facts):
    """Of a kernel that needs no memory of its own, waits first, and has what its build needs."""
    kind = f"{format.spec}@bits/blocked"
    problem = Problem(
        verb="matmul", m=512, n=4096, k=4096, x=kind, w=kind, out=out, device=gpu(device), **facts
    )
    assert kernel.refuses(problem) is None
    (build,) = kernel.bind(problem, config).builds
    code = cubin(build, problem.target)
    used = cubins.usage(code)[build.entry]
    assert used.stack == used.local == 0
    (listing,) = cubins.machine_code([(build, code)], problem.target)
    there = cubins.opcodes(listing)
    assert all(any(each.startswith(need) for each in there) for need in build.needs)
    assert not cubins.loads_too_early(listing, build, problem.target)
    return listing


@pytest.mark.parametrize(
    ("kernel", "device", "config", "format", "out", "facts", "opcode"),
    [
        (sm100_gemm, "b200", PairConfig(256, 2, 1, 4, multicast=True), bs.NVFP4, "bfloat16",
         {**GATED, **RAGGED}, "UTCOMMA.2CTA.4X"),
        (sm100_gemm, "b200", PairConfig(256, 1, 2, 2), bs.MXFP8, "float32", GATED, "UTCQMMA"),
        (sm100_gemm, "b300", PairConfig(128, 1, 1, 6), bs.MXFP4, "float16", RAGGED, "UTCOMMA"),
        (sm120_gemm, "rtx5090", WarpConfig(128, 2), bs.NVFP4, "bfloat16", {**GATED, **RAGGED},
         "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"),
        (sm120_gemm, "gb10", WarpConfig(64, 3), bs.MXFP6_E3M2, "float32", RAGGED,
         "QMMA.SF.16832.F32.E3M2.E3M2.E8"),
    ],
    ids=["pair", "gated", "grouped", "warps-gated", "warps"],
)  # fmt: skip
def test_verbs_compile(kernel, device, config, format, out, facts, opcode):
    listing = machine_code(kernel, device, config, format, out, facts)
    assert opcode in cubins.opcodes(listing)


def test_two_instructions_for_384_rows_of_w_keep_x():
    config = PairConfig(384, 2, 1, 4)
    listing = machine_code(sm100_gemm, "b200", config, bs.NVFP4, "bfloat16", {})
    products = [each.operands for each in listing if each.opcode == "UTCOMMA.2CTA.4X"]
    # Four steps of a tile's first stage, one part of w after the other; four of the other stages.
    for told in ("A_KEEP", "A_REUSE"):
        assert sum(told in each for each in products) == 4
    assert len(products) == 8 + 8
