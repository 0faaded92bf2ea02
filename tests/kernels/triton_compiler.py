"""Compiles the Triton kernels for a GPU that is not here, as a launch would."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from blockscale.kernels.matmul.portable.config import variant
from blockscale.kernels.matmul.portable.device import product as kernels

POINTERS = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32"}
# Of a problem whose sizes are multiples of 16, as Triton notes of numbers it is launched with.
ALIGNED = ("n", "k", "x_stride", "x_blocks", "length", "blocks", "codes_stride", "scales_stride")


def ptx(problem, config, name="product"):
    """What the kernel becomes before it is assembled, which is done too."""
    kernel = getattr(kernels, name)
    signature, constants, attributes = {}, {}, {}

    def described(argument, path):
        if isinstance(argument, tuple):
            return tuple(described(each, (*path, i)) for i, each in enumerate(argument))
        if not isinstance(argument, str):
            constants[path] = argument
            return "constexpr"
        if argument.startswith("*") or kernel.arg_names[path[0]] in ALIGNED:
            attributes[path] = [["tt.divisibility", 16]]
        return argument

    given = _arguments(problem, config)
    for i, each in enumerate(kernel.arg_names):
        signature[each] = described(given.get(each, "i32"), (i,))
    major, minor = problem.device.capability
    made = triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", 10 * major + minor, 32),
        options={"num_warps": config.warps, "num_stages": config.stages},
    )
    assert made.asm["cubin"]
    return made.asm["ptx"]


def _arguments(problem, config):
    """Pointers, floats and what is fixed; all others are integers."""
    format = problem.w_kind.format
    weight = (
        "*u8",
        "*fp32" if format.scale.bits == 32 else "*u8",
        "*fp32" if format.has_tensor_scale else None,
        "*fp32" if format.is_codebook else None,
        "*fp32" if problem.bias else None,
    )
    x = (POINTERS.get(problem.x), None, None)
    if "@" in problem.x:
        x = ("*u8", "*u8", "*fp32" if problem.x_kind.format.has_tensor_scale else None)
    return {
        "x": x,
        "gate": weight,
        "up": weight if problem.gated else None,
        "group_sizes": "*i64" if problem.ragged else None,
        "out": POINTERS[problem.out],
        "partial": "*fp32" if config.splits > 1 else None,
        "alpha": "fp32",
        "limit": "fp32",
        "V": variant(problem, config),
    }
