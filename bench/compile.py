"""Kernels that are compiled at run time, before anything is timed, on all cores at once."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from bench.rivals import Rival


def compile_all(
    rivals: Sequence[Rival],
    shapes: Sequence[tuple[int, int]],
    rows: Sequence[int],
    seconds: float,
) -> dict[str, str]:
    """Who is to be left out, since it was not done in time, and why.

    What does not compile is not told here: it fails again where it is used, and is reported there.
    """
    begin = time.perf_counter()
    pool = ThreadPoolExecutor(os.cpu_count())
    waiting: dict[Future[object], str] = {}
    for rival in rivals:
        with suppress(Exception):
            for job in rival.compilations(shapes, rows):
                waiting[pool.submit(job)] = rival.name
    late = wait(waiting, timeout=max(0.0, seconds - (time.perf_counter() - begin))).not_done
    pool.shutdown(wait=False, cancel_futures=True)
    counts: dict[str, int] = {}
    for future in late:
        counts[waiting[future]] = counts.get(waiting[future], 0) + 1
    return {
        name: f"{count} of its kernels were not compiled in {seconds:.0f} s"
        for name, count in counts.items()
    }
