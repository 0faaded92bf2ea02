"""Builds the wheels of every system, and the source distribution, into dist/:

    python tools/wheels.py [TARGET ...]

The native library is compiled by zig (the package `ziglang`), which brings compilers and C
libraries of all targets: no other is needed, and any Linux machine builds every wheel. Each wheel
holds the same Python files, so one is built without native code and the library is put into it. The
extension that replays CUDA calls needs the headers of a Python of its target: the source
distribution builds it.

Prints the size of each wheel, and whether products of its library were right here: on this machine
or by an emulator. Where neither can run it, a program is linked to it all the same, which shows
that it exports what it should.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

ROOT = Path(__file__).parents[1]
DIST, WORK = ROOT / "dist", ROOT / "build" / "wheels"
# Without symbols that nobody calls. zig compiles its C++ library, for minutes, for each combination
# of these: one for all that is linked here.
FLAGS = ("-fPIC", "-s")
RUNTIME = PurePosixPath("blockscale/runtime")
NATIVE = (".so", ".dylib", ".dll", ".pyd")


@dataclass(frozen=True)
class Target:
    tag: str  # of the wheel
    system: str
    zig: str
    library: str

    @property
    def machine(self) -> str:
        return self.zig.partition("-")[0]

    @property
    def on_linux(self) -> bool:
        return self.system == "Linux"


# Linux: the C library of 2014, older than that of any system that has Python 3.10.
TARGETS = {
    "linux-x86_64": Target(
        "manylinux_2_17_x86_64", "Linux", "x86_64-linux-gnu.2.17", "libblockscale_cpu.so"
    ),
    "linux-aarch64": Target(
        "manylinux_2_17_aarch64", "Linux", "aarch64-linux-gnu.2.17", "libblockscale_cpu.so"
    ),
    "macos-arm64": Target(
        "macosx_11_0_arm64", "Darwin", "aarch64-macos.11.0", "libblockscale_cpu.dylib"
    ),
    "windows-x86_64": Target("win_amd64", "Windows", "x86_64-windows-gnu", "libblockscale_cpu.dll"),
}


def run(*command: object, **options: object) -> str:
    done = subprocess.run(  # noqa: S603
        list(map(str, command)), check=False, capture_output=True, text=True, **options
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _beside_python(program: str) -> str:
    """The program of this Python's environment, and only without one the system's."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which(program, path=path)
    return found or sys.exit(f"{program} is missing: pip install {program}")


def compile_library(target: Target) -> Path:
    """The native library of a target."""
    build = WORK / target.tag
    compilers = WORK / f"zig-{target.tag}"  # CMake wants the compiler to be one file
    compilers.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m ziglang c++ -target {target.zig} "$@"\n'
    )
    compilers.chmod(0o755)
    options = {
        "CMAKE_SYSTEM_NAME": target.system,
        "CMAKE_SYSTEM_PROCESSOR": target.machine,
        "CMAKE_CXX_COMPILER": compilers,
        "CMAKE_CXX_FLAGS": " ".join(FLAGS),
        "CMAKE_DISABLE_FIND_PACKAGE_Python3": "ON",
    }
    definitions = [f"-D{name}={value}" for name, value in options.items()]
    cmake = _beside_python("cmake")
    run(cmake, "-S", ROOT / "csrc", "-B", build, *definitions)
    run(cmake, "--build", build, "--target", "blockscale_cpu", "--parallel", os.cpu_count() or 1)
    return build / target.library


def pure_wheel(folder: Path) -> Path:
    """The Python files alone."""
    run(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--wheel-dir", folder,
        "--config-settings=wheel.cmake=false")  # fmt: skip
    return next(folder.glob("blockscale-*.whl"))


def pack(pure: Path, target: Target, library: Path, folder: Path) -> Path:
    """The wheel of a target: the files of the pure one, the library, and what tells of both.

    What was compiled into the source tree, for the machine that this runs on, stays behind."""
    with ZipFile(pure) as given:
        left_out = ("/", *NATIVE)
        files = {name: given.read(name) for name in given.namelist() if not name.endswith(left_out)}
    about, record = (_only(files, f".dist-info/{name}") for name in ("WHEEL", "RECORD"))
    told = files[about].decode().splitlines()
    kept = [line for line in told if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    own = ["Root-Is-Purelib: false", f"Tag: py3-none-{target.tag}", ""]
    files[about] = "\n".join([*kept, *own]).encode()
    files[f"{RUNTIME}/{target.library}"] = library.read_bytes()
    del files[record]
    files[record] = _record(files, record).encode()  # the last, as installers like it
    wheel = folder / pure.name.replace("-py3-none-any.whl", f"-py3-none-{target.tag}.whl")
    with ZipFile(wheel, "w", ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(_entry(name), content, ZIP_DEFLATED)
    return wheel


def _only(names: Iterable[str], end: str) -> str:
    (found,) = (name for name in names if name.endswith(end))
    return found


def _record(files: Mapping[str, bytes], record: str) -> str:
    """Path, hash and size of each file, and the record itself without them."""
    lines = [
        f"{name},sha256={urlsafe_b64encode(sha256(content).digest()).rstrip(b'=').decode()},"
        f"{len(content)}"
        for name, content in files.items()
    ]
    return "\n".join([*lines, f"{record},,", ""])


def _entry(name: str) -> ZipInfo:
    """Of a date that is always the same: equal files make equal wheels."""
    entry = ZipInfo(name)
    entry.external_attr = 0o644 << 16
    return entry


def smoke(target: Target, library: Path) -> str:
    """Links a program of products to the library, runs it where that is possible, and says so."""
    program = library.with_name("smoke.exe")
    compiler = WORK / f"zig-{target.tag}"
    source = ROOT / "tests" / "native" / "products_of_isa.cpp"
    run(compiler, *FLAGS, "-std=c++17", "-O1", "-I", ROOT / "csrc", source, library,
        *(["-Wl,-rpath,$ORIGIN"] if target.on_linux else []), "-o", program)  # fmt: skip
    if not target.on_linux or platform.system() != "Linux":
        return "links; not run, for want of such a machine"
    emulator = [] if target.machine == platform.machine() else _emulator(target.machine)
    if emulator is None:
        return f"links; not run, for want of qemu-{target.machine} and its C library"
    results = run(*emulator, program).splitlines()[1:]
    errors = [float(line.split()[-1]) for line in results]  # relative to their bounds
    if not errors or not max(errors) <= 1:
        sys.exit(f"{library} computes wrong products:\n" + "\n".join(results))
    return f"{len(errors)} products right, {'by an emulator' if emulator else 'on this machine'}"


def _emulator(machine: str) -> list[str] | None:
    """The command that runs programs of a Linux machine, or None."""
    name, root = f"qemu-{machine}", Path(f"/usr/{machine}-linux-gnu")
    return [name, "-L", str(root)] if shutil.which(name) and root.exists() else None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    asked = parser.parse_args(argv).targets or list(TARGETS)
    if unknown := set(asked) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}: there are {', '.join(TARGETS)}")
    DIST.mkdir(exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        pure = pure_wheel(Path(folder))
        for name in asked:
            target = TARGETS[name]
            library = compile_library(target)
            wheel = pack(pure, target, library, DIST)
            size = wheel.stat().st_size / 1e6
            print(f"{wheel.name}: {size:.2f} MB; {smoke(target, library)}", flush=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT)


if __name__ == "__main__":
    main()
