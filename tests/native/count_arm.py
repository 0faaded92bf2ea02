"""Instructions of ARM's products over formats, rows and sizes, counted by an emulator.

    cd tests; python -m native.count_arm        counts, and writes arm_sweep.json: ten minutes

The library is compiled as it is shipped. `bench.fit_arm` makes the constants of the cost model
from what is written here.
"""

import json
import tempfile
from pathlib import Path

from blockscale.runtime import native
from native import arm

SWEEP = Path(__file__).with_name("arm_sweep.json")
ROWS, SIZES = (1, 2, 4, 8, 16), (16, 64)  # of x, and n


def ways_of(case):
    """Instruction set, and algorithm where it is not the case's own."""
    if "int8" in case:
        return [("neon",), ("dotprod",), ("i8mm",)]
    sliced = [] if "8 bits" in case else [("dotprod", "slices")]
    return [("neon",), ("neon", "gemm"), *sliced, ("bf16", "bfmmla")]


def sweep(folder):
    """[case, instruction set, algorithm, rows, n, instructions] of each product."""
    objects = arm.compile_objects(folder, "-O3")
    program = arm.link(folder, objects, "one_product.cpp")
    found = []
    for case in arm.emulated("max", program).stdout.splitlines():
        for isa, *algorithm in ways_of(case):
            name = algorithm[0] if algorithm else "int8" if "int8" in case else "stream"
            at = native.ISAS.index(isa)
            for rows in ROWS:
                for n in SIZES:
                    told = arm.count(folder, program, case, rows, n, at, *algorithm)
                    found.append([case, isa, name, rows, n, told])
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        lines = map(json.dumps, sweep(Path(folder)))
    SWEEP.write_text("[\n" + ",\n".join(lines) + "\n]\n")
