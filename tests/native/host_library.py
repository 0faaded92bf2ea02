"""Device code compiled for the host: each distinct library once, for all workers and later runs.

A library is kept in build/host, named by the hash of its command and of every source that it may
include. It appears by a rename, so that workers which compile the same one at once do no harm.
"""

import ctypes
import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path

from blockscale.runtime.cuda import FOLDER

HERE = Path(__file__).parent
KEPT = HERE.parents[1] / "build" / "host"


def host_library(*command):
    """What the C++ compiler makes of these options and sources, loaded."""
    words = ["c++", "-fPIC", "-shared", f"-I{FOLDER}", *map(str, command)]
    name = hashlib.sha256("\0".join([_sources(), *words]).encode()).hexdigest()
    path = KEPT / f"{name}.so"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        subprocess.run([*words, "-o", unfinished], check=True)
        unfinished.replace(path)
    return ctypes.CDLL(str(path))


@cache
def _sources():
    """The hash of all device code, of what stands in for CUDA on the host, and of the compiler."""
    files = [
        each for folder in (Path(FOLDER), HERE) for each in folder.rglob("*") if _is_code(each)
    ]
    version = subprocess.run(["c++", "--version"], capture_output=True, check=True).stdout
    found = hashlib.sha256(version)
    for file in sorted(files):
        found.update(f"{file}\0".encode() + file.read_bytes())
    return found.hexdigest()


def _is_code(path):
    return path.is_file() and path.suffix not in (".py", ".pyc", ".json")
