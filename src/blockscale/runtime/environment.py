"""The environment variables, all of them. Nothing else in the library reads the environment."""

from __future__ import annotations

import os

VARIABLES = {
    "BLOCKSCALE_CHECK": "1: read group sizes and given tensor scales back from the GPU and raise "
    "on bad ones, which synchronises; by default sizes are clipped on the device",
    "BLOCKSCALE_ISA": "scalar, avx2, avx512 or amx: the instruction set of the native CPU kernels; "
    "by default the best that the CPU has",
    "BLOCKSCALE_NATIVE": "path of the native CPU library, or 0 to do without it",
}


def checks_enabled() -> bool:
    return os.environ.get("BLOCKSCALE_CHECK", "0") not in ("", "0")


def isa_override() -> str | None:
    return os.environ.get("BLOCKSCALE_ISA") or None


def native_override() -> str | None:
    return os.environ.get("BLOCKSCALE_NATIVE") or None
