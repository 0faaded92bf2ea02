"""The kernels for ARM, run by an emulator: results, instructions, and what they run on."""

import json
import platform
from pathlib import Path

import pytest

import ways
from blockscale.runtime import load_native, native
from native import arm

COUNTS = Path(__file__).with_name("arm_counts.json")
TOLERANCE = 1.03
pytestmark = pytest.mark.skipif(bool(arm.missing()), reason=arm.missing())


def number(isa):
    return native.ISAS.index(isa)


def results(text):
    """Name of a product -> digest of its bits, and its error relative to the bound."""
    lines = [line.rsplit(": ", 1) for line in text.splitlines()[1:]]
    return {name: (found.split()[0], float(found.split()[1])) for name, found in lines}


def int8_here(folder):
    """Digests of the products with int8 activations by this machine's kernels."""
    library, program = load_native().path, folder / "here"
    arm.run("c++", "-std=c++17", "-O1", "-I", arm.CSRC, arm.HERE / "products_of_isa.cpp", library,
            f"-Wl,-rpath,{library.resolve().parent}", "-o", program)  # fmt: skip
    found = results(arm.run(program, number("avx2")).stdout)
    return {name: digest for name, (digest, _) in found.items() if name.endswith("int8")}


def check_bfmmla(found):
    """Within their bounds, and the bits of their definition, or they would have failed before."""
    kinds = {name.rsplit(", ", 2)[0] for name in found}
    rows = {name.rsplit(", ", 2)[1] for name in found}
    made = {name for name in found if name.endswith("bfmmla")}
    assert made == {f"{kind}, {each}, bfmmla" for kind in kinds for each in rows}


def check_slices(found):
    """Codes of every number of bits are multiplied so wherever there are dot products of bytes."""
    made = {
        cpu: {name.split(" ")[0] for name in each if name.endswith("slices")}
        for cpu, each in found.items()
    }
    assert made["cortex-a72"] == set()
    assert made["neoverse-n1"] == {"2", "3", "4", "5", "6"}


def ways_of(case):
    """Instruction sets, and the algorithm where it is not the case's own."""
    if "int8" in case:
        return [("dotprod",), ("i8mm",)]
    sliced = [] if "8 bits" in case else [("dotprod", "slices")]
    return [("neon",), *sliced, ("bf16", "bfmmla")]


def check_counts(folder, objects, optimization):
    program = arm.link(folder, objects, "one_product.cpp")
    now = {}
    for case in arm.emulated("max", program).stdout.splitlines():
        for isa, *algorithm in ways_of(case):
            for rows in (1, 4):
                found = arm.count(folder, program, case, rows, 64, number(isa), *algorithm)
                now[", ".join((case, *algorithm, isa, f"{rows} rows"))] = found
    record = json.loads(COUNTS.read_text())
    if optimization not in record:
        record[optimization] = now
        COUNTS.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
        pytest.fail(f"{COUNTS.name} had no counts of {optimization}, and has now: run this again")
    before = record[optimization]
    again = f"delete {optimization} of {COUNTS.name} and run this again to count anew"
    assert now.keys() == before.keys(), again
    slower = {case: (before[case], found) for case, found in now.items()
              if found > TOLERANCE * before[case]}  # fmt: skip
    assert not slower, again


def test_arm_kernels(tmp_path):
    """One test, since compiling them takes most of its time."""
    built = arm.built_objects()
    objects = built or arm.compile_objects(tmp_path, "-O1")

    program = arm.link(tmp_path, objects, "products_of_isa.cpp")
    found = {}
    for cpu, isa in arm.CPUS.items():
        text = arm.emulated(cpu, program).stdout
        assert text.splitlines()[0] == str(number(isa)), f"{cpu} has {isa}"
        found[cpu] = results(text)
        assert {name: error for name, (_, error) in found[cpu].items() if not error <= 1} == {}
    every = found.popitem()[1]  # also the products that it alone has
    for each in found.values():
        assert each.items() <= every.items(), "instruction sets differ in bits"
    check_slices(found)
    check_bfmmla(every)
    if platform.machine() == "x86_64" and "avx2" in ways.ISAS:
        bits = {name: digest for name, (digest, _) in every.items()}
        assert int8_here(tmp_path).items() <= bits.items(), "x86 and ARM differ in bits"

    # What a system claims is tried before it is believed.
    liar = arm.link(tmp_path, objects, "lying_system.cpp")
    for cpu, isa in arm.CPUS.items():
        told = arm.emulated(cpu, liar).stdout
        assert told == f"{number(isa)}\n", f"{cpu} runs {isa}, whatever the system claims"

    check_counts(tmp_path, objects, "-O3" if built else "-O1")
