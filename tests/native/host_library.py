"""Device code compiled for the host: each distinct library once, for all workers and later runs.

A library is kept in build/host, named by the hash of its command and of every source that it may
include. It appears by a rename, so that workers which compile the same one at once do no harm.
Kernels are linked with the emulator, not compiled with it: a change of either leaves the other.
"""

import ctypes
import hashlib
import os
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

from blockscale.runtime.cuda import FOLDER

HERE = Path(__file__).parent
EMULATOR = HERE.parent / "emulator"
STANDARD = HERE / "standard_headers.h"
KEPT = HERE.parents[1] / "build" / "host"


def host_library(*command):
    """What the C++ compiler makes of these options and sources and the emulator, loaded."""
    return ctypes.CDLL(str(program("-fPIC", "-shared", *command)))


def program(*command):
    """The path of what the C++ compiler makes of these and the emulator."""
    return made(*command, emulator_path(), sources=(FOLDER, HERE))


def kernel_object(*command):
    """The path of a kernel, which is linked with the emulator by itself."""
    options = (each for each in command if each != "-c" and not each.startswith("-D"))
    words = (*command, "-include", standard_headers(*options), EMULATOR / "kernel.cpp")
    return made(*words, sources=(FOLDER, *EMULATOR.glob("*.c*")))


@cache
def standard_headers(*options):
    """A header, and beside it what the compiler has made of it: reading the standard library takes
    half of the time of a kernel. Other compilers, and other options, include it as it is."""
    precompiled = made(*options, "-xc++-header", STANDARD, sources=(STANDARD,), suffix=".h.gch")
    header = precompiled.with_suffix("")
    with suppress(FileExistsError):
        header.symlink_to(STANDARD)
    return header


@cache
def emulator_path():
    """The emulator knows the wrappers' host half of the device code alone. Some compilers define
    _FORTIFY_SOURCE by themselves, whose longjmp aborts where a fiber jumps to another's stack."""
    options = ("-fPIC", "-shared", "-std=c++20", "-O2", "-U_FORTIFY_SOURCE")
    sources = (FOLDER / "base.cuh", *FOLDER.glob("ptx/host*"), EMULATOR)
    return made(*options, EMULATOR / "emulator.cpp", sources=sources)


def made(*command, sources=(), suffix=".so"):
    """The path of what the C++ compiler makes of these options and files; it may include `sources`,
    files or folders."""
    words = ["c++", f"-I{FOLDER}", f"-I{EMULATOR}", *map(str, command)]
    name = hashlib.sha256("\0".join([_contents(*sources), *words]).encode()).hexdigest()
    path = KEPT / f"{name}{suffix}"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        unfinished = KEPT / f"{name}.{os.getpid()}"
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
