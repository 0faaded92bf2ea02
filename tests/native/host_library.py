"""Device code compiled for the host: each distinct library once, for all workers and later runs.

A library is kept in build/host, named by the hash of its commands and of every source that it may
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
EMULATOR = HERE.parent / "emulator"
KEPT = HERE.parents[1] / "build" / "host"


def host_library(*command):
    """What the C++ compiler makes of these options and sources and the emulator, loaded."""
    return ctypes.CDLL(str(made("-fPIC", "-shared", *command, emulator_path())))


@cache
def emulator_path():
    return made("-fPIC", "-shared", "-std=c++20", "-O1", EMULATOR / "emulator.cpp")


def made(*command):
    """The path of what the C++ compiler makes of these options and sources."""
    words = ["c++", f"-I{FOLDER}", f"-I{EMULATOR}", *map(str, command)]
    name = hashlib.sha256("\0".join([_sources(), *words]).encode()).hexdigest()
    path = KEPT / f"{name}.so"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        subprocess.run([*words, "-o", unfinished], check=True)
        unfinished.replace(path)
    return path


@cache
def _sources():
    """The hash of all device code, of what stands in for CUDA on the host, and of the compiler."""
    folders = Path(FOLDER), HERE, EMULATOR
    files = [each for folder in folders for each in folder.rglob("*") if _is_code(each)]
    version = subprocess.run(["c++", "--version"], capture_output=True, check=True).stdout
    found = hashlib.sha256(version)
    for file in sorted(files):
        found.update(f"{file}\0".encode() + file.read_bytes())
    return found.hexdigest()


def _is_code(path):
    return path.is_file() and path.suffix not in (".py", ".pyc", ".json")
