"""Running one damaged case: a right result or a clear error, in bounded time and memory."""

from __future__ import annotations

import random
import shutil
import signal
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fuzz.corpus import Folder
from fuzz.mutations import mutate_file

if sys.platform != "win32":
    import resource

CPU_SECONDS = 20  # a case takes milliseconds
# Parsed JSON takes up to 30 times its text, and a file is read, checked and parsed.
BYTES_PER_BYTE = 64
OWN_BYTES = 2**23  # a chunk of a file that is digested, errors, what a first call leaves
HEADROOM = 2**28  # address space, in which allocators and threads reserve more than they use
_MEASURED = 8  # one case in so many is traced


@dataclass(frozen=True)
class Reader:
    """Something that reads files.

    seeds   sound folders
    read    reads a folder at a path, and raises AssertionError where a result is wrong; it is
            given the sound folder too, for comparison
    """

    name: str
    seeds: list[Folder]
    read: Callable[[Path, Folder, Folder], None]


class Hang(BaseException):
    """Not an Exception, so that nothing that is tested can swallow it."""


def make_case(reader: Reader, seed: int, number: int) -> tuple[Folder, Folder]:
    """A sound folder and its damaged copy: the same for the same numbers, everywhere."""
    rng = random.Random(f"{seed}:{reader.name}:{number}")
    sound = rng.choice(reader.seeds)
    damaged = dict(sound)
    name = rng.choice(list(damaged))
    damaged[name] = mutate_file(name, damaged[name], rng)
    return sound, damaged


def run_case(reader: Reader, seed: int, number: int, folder: Path) -> str:
    """What came of it: "read", or the type of the error. Anything else raises AssertionError."""
    sound, damaged = make_case(reader, seed, number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in damaged.items():
        (folder / name).write_bytes(content)
    size = sum(map(len, damaged.values()))
    repeat = f"python -m fuzz --reader {reader.name} --seed {seed} --first {number} --cases 1"
    try:
        with _limited(size, traced=number % _MEASURED == 0):
            reader.read(folder, sound, damaged)
    except (Exception, Hang) as error:
        what = type(error).__name__
        if (isinstance(error, OSError) or what == "ValueError") and str(folder) in str(error):
            return what
        raise AssertionError(f"{repeat}\n{what}: {error}") from error
    return "read"


@contextmanager
def _limited(size: int, *, traced: bool) -> Iterator[None]:
    """Processor time, address space and Python's own memory, by the size of the files."""

    def hang(*_: object) -> None:
        raise Hang(f"more than {CPU_SECONDS} s of processor time")

    before = signal.signal(signal.SIGPROF, hang)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    old = resource.getrlimit(resource.RLIMIT_AS)
    most = BYTES_PER_BYTE * size
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    if pages:
        limit = pages * resource.getpagesize() + HEADROOM + most
        resource.setrlimit(resource.RLIMIT_AS, (limit, old[1]))
    if traced:
        tracemalloc.start()
    try:
        yield
    finally:
        peak = tracemalloc.get_traced_memory()[1] if traced else 0
        tracemalloc.stop()
        resource.setrlimit(resource.RLIMIT_AS, old)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert peak <= OWN_BYTES + most, f"{peak:,} bytes of memory for files of {size:,}"
