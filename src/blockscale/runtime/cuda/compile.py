"""Machine code for a build: from the disk, or from NVRTC."""

from __future__ import annotations

from blockscale.runtime.cuda.arch import arch_of
from blockscale.runtime.cuda.build import FOLDER, Build
from blockscale.runtime.cuda.cache import Entry, open_cache
from blockscale.runtime.cuda.nvrtc import CompilationError, Nvrtc, load_nvrtc


def cubin(build: Build, target: str) -> bytes:
    """Compiled unless the disk has it. Slow the first time: seconds."""
    nvrtc, arch = _nvrtc(), arch_of(target)
    cache, key = open_cache(), _key(build, arch, nvrtc)
    if cache is not None and (kept := cache.read(key)) is not None:
        return kept
    try:
        code = nvrtc.compile(
            build.path.read_text(encoding="utf-8"),
            str(build.path),
            [*_options(build, arch), f"--include-path={FOLDER}"],
        )
    except CompilationError as error:
        raise CompilationError(f"{build} for {arch}, NVRTC {nvrtc.version}: {error}") from None
    if cache is not None:
        cache.write(key, Entry(str(build), arch, nvrtc.version), code)
    return code


def is_cached(build: Build, target: str) -> bool:
    cache = open_cache()
    return cache is not None and cache.holds(_key(build, arch_of(target), _nvrtc()))


def _nvrtc() -> Nvrtc:
    nvrtc = load_nvrtc()
    if isinstance(nvrtc, str):
        raise RuntimeError(nvrtc)  # a kernel that needs it has refused before
    return nvrtc


def _options(build: Build, arch: str) -> list[str]:
    """No fast math: roundings are part of the formats' definition."""
    return [
        f"--gpu-architecture={arch}",
        "--std=c++17",
        "--device-as-default-execution-space",
        *(f"--define-macro={name}={value}" for name, value in build.defines),
    ]


def _key(build: Build, arch: str, nvrtc: Nvrtc) -> str:
    return build.key(_options(build, arch), nvrtc.build)
