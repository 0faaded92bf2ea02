"""Many kernels at a time. Threads are enough: NVRTC does not hold the GIL."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from blockscale.runtime.cuda.build import Build
from blockscale.runtime.cuda.compile import cubin
from blockscale.runtime.cuda.nvrtc import CompilationError


def compile_all(
    builds: Sequence[Build], target: str, jobs: int | None = None
) -> Iterator[tuple[Build, CompilationError | None]]:
    """Each build when it is done and on the disk, with what was wrong with it."""
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        waiting = {pool.submit(cubin, build, target): build for build in builds}
        try:
            for done in as_completed(waiting):
                error = done.exception()
                if error is not None and not isinstance(error, CompilationError):
                    raise error
                yield waiting[done], error
        finally:  # where somebody has stopped listening
            pool.shutdown(wait=False, cancel_futures=True)
