"""The environment variables, all of them. Nothing else in the library reads the environment, but
for the extension of replays, which looks at CHECKS too."""

from __future__ import annotations

import os
from pathlib import Path

CHECKS = "BLOCKSCALE_CHECK"

VARIABLES = {
    "BLOCKSCALE_CACHE": "folder for compiled CUDA kernels and, in tuned and proven, for what "
    "tuning and proving have found; by default the folders cubins, tuned and proven of blockscale "
    "in XDG_CACHE_HOME or ~/.cache",
    "BLOCKSCALE_CACHE_MB": "how large all compiled kernels may become, 512 by default; 0 keeps "
    "none",
    CHECKS: "1: read group sizes and given tensor scales back from the GPU and raise "
    "on bad ones, which synchronises; by default sizes are clipped on the device",
    "BLOCKSCALE_CUDA": "0: do without the CUDA kernels",
    "BLOCKSCALE_ISA": "scalar, avx2, avx512 or amx, on ARM neon, dotprod, i8mm or bf16: the "
    "instruction set of the native CPU kernels; by default the best that the CPU has",
    "BLOCKSCALE_NATIVE": "path of the native CPU library, or 0 to do without it",
    "BLOCKSCALE_PROVE": "0: run kernels that no test has shown to work on this kind of GPU without "
    "proving them first",
    "BLOCKSCALE_REPLAY": "path of the extension that repeats calls on a GPU at a lower cost to "
    "the host, or 0 to do without it",
    "BLOCKSCALE_TUNED": "0: do without what tuning has found, and choose by rule",
    "BLOCKSCALE_VLLM": "1: vLLM serves every checkpoint that is read here with these kernels, on "
    "GPUs too; 0: other libraries' only when asked to by --quantization blockscale",
    "BLOCKSCALE_X_FORMAT": "what layers served by vLLM or SGLang quantise their inputs to: "
    "nvfp4, mxfp8, int8, ...; by default only weights are quantised",
}


def _switch(name: str) -> bool | None:
    """None where nothing was said. "false" would be taken for yes by whoever asks for "0" alone."""
    asked = os.environ.get(name, "")
    if asked not in ("", "0", "1"):
        raise ValueError(f"{name}={asked}: give 1 or 0")
    return None if asked == "" else asked == "1"


def checks_enabled() -> bool:
    return _switch(CHECKS) is True


def cuda_enabled() -> bool:
    return _switch("BLOCKSCALE_CUDA") is not False


def cache_folder() -> Path:
    return _asked_folder() or _default_folder() / "cubins"


def tuned_folder() -> Path:
    return (_asked_folder() or _default_folder()) / "tuned"


def proven_folder() -> Path:
    return (_asked_folder() or _default_folder()) / "proven"


def _asked_folder() -> Path | None:
    asked = os.environ.get("BLOCKSCALE_CACHE")
    return Path(asked).expanduser().absolute() if asked else None


def _default_folder() -> Path:
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "blockscale"


def cache_megabytes() -> int:
    asked = os.environ.get("BLOCKSCALE_CACHE_MB") or "512"
    try:
        return int(asked)
    except ValueError:
        raise ValueError(f"BLOCKSCALE_CACHE_MB={asked}: give a number of megabytes") from None


def isa_override() -> str | None:
    return os.environ.get("BLOCKSCALE_ISA") or None


def native_override() -> str | None:
    return os.environ.get("BLOCKSCALE_NATIVE") or None


def replay_override() -> str | None:
    return os.environ.get("BLOCKSCALE_REPLAY") or None


def compiler_override() -> str | None:
    """Triton's variable for the C compiler, not one of ours."""
    return os.environ.get("CC") or None


def tuned_enabled() -> bool:
    return _switch("BLOCKSCALE_TUNED") is not False


def serving_everywhere() -> bool | None:
    """None: on CPUs alone."""
    return _switch("BLOCKSCALE_VLLM")


def serving_x_format() -> str | None:
    return os.environ.get("BLOCKSCALE_X_FORMAT") or None


def proving_enabled() -> bool:
    return _switch("BLOCKSCALE_PROVE") is not False
