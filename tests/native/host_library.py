"""Device code compiled for the host: each distinct library once, for all workers and later runs.

A library is kept in build/host, named by the hash of its command and of every source that it may
include. It appears by a rename, so that workers which compile the same one at once do no harm.
Kernels are linked with the emulator, not compiled with it: a change of either leaves the other.
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
    return ctypes.CDLL(str(program("-fPIC", "-shared", *command)))


def program(*command):
    """The path of what the C++ compiler makes of these and the emulator."""
    return made(*command, emulator_path(), sources=(FOLDER, HERE))


def kernel_object(*command):
    """The path of a kernel, which is linked with the emulator by itself."""
    return made(*command, EMULATOR / "kernel.cpp", sources=(FOLDER, *EMULATOR.glob("*.c*")))


@cache
def emulator_path():
    """The emulator knows the wrappers' host half of the device code alone."""
    options = ("-fPIC", "-shared", "-std=c++20", "-O1")
    sources = (FOLDER / "base.cuh", *FOLDER.glob("ptx/host*"), EMULATOR)
    return made(*options, EMULATOR / "emulator.cpp", sources=sources)


def made(*command, sources=()):
    """The path of what the C++ compiler makes of these options and files; it may include `sources`,
    files or folders."""
    words = ["c++", f"-I{FOLDER}", f"-I{EMULATOR}", *map(str, command)]
    name = hashlib.sha256("\0".join([_contents(*sources), *words]).encode()).hexdigest()
    path = KEPT / f"{name}.so"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        subprocess.run([*words, "-o", unfinished], check=True)
        unfinished.replace(path)
    return path


@cache
def _contents(*places):
    """The hash of these files and folders, and of the compiler."""
    files = [
        each
        for place in places
        for each in (place.rglob("*") if place.is_dir() else [place])
        if _is_code(each)
    ]
    found = hashlib.sha256(_compiler())
    for file in sorted(files):
        found.update(f"{file}\0".encode() + file.read_bytes())
    return found.hexdigest()


@cache
def _compiler():
    return subprocess.run(["c++", "--version"], capture_output=True, check=True).stdout


def _is_code(path):
    return path.is_file() and path.suffix not in (".py", ".pyc", ".json")
