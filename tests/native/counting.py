"""Instructions of one product of one row (n=64, k=1024), by what every CPU of this architecture
has, counted by callgrind.

    python tests/native/counting.py        counts, and writes those of this compiler to counts.json

Times differ from run to run and from machine to machine; instructions of the same code do not.
Another compiler or architecture makes other code, and has counts of its own.
"""

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from blockscale.runtime import load_native, native

HERE = Path(__file__).parent
COUNTS = HERE / "counts.json"
CSRC = HERE.parents[1] / "csrc"


def run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)


def missing():
    """Why nothing can be counted here, or ""."""
    native = load_native()
    if isinstance(native, str):
        return f"no native library: {native}"
    absent = [tool for tool in ("c++", "readelf", "valgrind") if shutil.which(tool) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


def compiled_by():
    """Whose code the library is: "aarch64, GCC 12"."""
    comment = run("readelf", "-p", ".comment", load_native().path).stdout
    name, version = re.search(r"\b(GCC|clang)\b.*? (\d+)\.\d+\.\d+", comment).groups()
    return f"{platform.machine()}, {name} {version}"


def count_all(folder):
    """Name of a case -> instructions inside the call."""
    library, harness = load_native().path, Path(folder) / "one_product"
    run("c++", "-std=c++17", "-O1", "-I", CSRC, HERE / "one_product.cpp", library,
        f"-Wl,-rpath,{library.resolve().parent}", "-o", harness)  # fmt: skip
    return {case: _count(harness, case) for case in run(harness).stdout.splitlines()}


def _count(harness, case):
    counted = run(
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
        "--collect-atstart=no", "--toggle-collect=bs_stream", "--toggle-collect=bs_int8",
        harness, case, 1, 64, native.ISAS.index(native.isas_up_to(load_native().isa)[0]),
    )  # fmt: skip
    return int(re.search(r"Collected : (\d+)", counted.stderr).group(1))


if __name__ == "__main__":
    if missing():
        sys.exit(missing())
    stored = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        stored[compiled_by()] = count_all(folder)
    COUNTS.write_text(json.dumps(stored, indent=2, sort_keys=True) + "\n")
