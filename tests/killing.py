"""Killing a process, by SIGKILL, at the n-th thing that it does to files: no timing is involved.

Python reports what is done to files to audit hooks. A child counts the reports about one folder and
kills itself at the n-th; with every n, or with random ones, all the points are found at which a
process can die between two steps. Children are forked, since importing torch takes longer than the
work, from a process with one thread: others would not be there after a fork.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")


def run_killed(work: Callable[[], object], folder: Path, point: int | None) -> bool:
    """Do the work in a child, which dies at `point`; whether it came to its end."""
    child = os.fork()
    if child == 0:
        if point is not None:
            sys.addaudithook(_killer(str(folder), point))
        try:
            work()
        except BaseException:  # noqa: BLE001 - a child must not go on as its parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"the work failed: {status}")
    return True


def _killer(folder: str, point: int) -> Callable[[str, tuple[object, ...]], None]:
    left = point

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in EVENTS and str(arguments[0]).startswith(folder):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def random_points(seed: int, most: int) -> Iterator[int]:
    """Early and late ones alike."""
    rng = random.Random(seed)
    while True:
        yield rng.randrange(most)
