"""Python's copy of csrc/abi.h has its structs, fields, types, offsets and numbers, and no others.

A program of assertions is written from Python's side and compiled with the header; nothing runs. A
structured binding takes as many names as the struct has fields, and a switch must name every
enumerator: so whatever only the header has is an error too.
"""

import re
import shutil
import subprocess
from ctypes import Structure, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p, sizeof

import pytest

from blockscale.formats import INT8
from blockscale.runtime import native
from native.arm import CSRC

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")

HEADERS = ("abi.h", "runtime/openmp.h")
CONSTANTS = {"ABI_VERSION": native.ABI_VERSION, "INT8_BLOCK": INT8.block}
STRUCTS = [
    each
    for each in vars(native).values()
    if isinstance(each, type) and issubclass(each, Structure) and each is not Structure
]
SCALARS = {
    c_int32: "int32_t", c_uint32: "uint32_t", c_int64: "int64_t", c_float: "float",
    c_double: "double",
}  # fmt: skip


def numbered(names, prefix="", **otherwise):
    """{enumerator: number} of Python's {name: number}; `otherwise`: where the two differ."""
    otherwise = {"": "NONE", **otherwise}
    return {otherwise.get(name, prefix + name.upper()): names[name] for name in names}


ENUMS = {
    "Isa": numbered({name: number for number, name in enumerate(native.ISAS)}),
    "Dtype": numbered(native.DTYPES, uint8="INT8"),
    "Decoder": numbered(native.DECODERS),
    "Activation": numbered(native.ACTIVATIONS),
    "Algorithm": numbered(native.ALGORITHMS, "BY_"),
    "CodeLayout": numbered(native.CODE_LAYOUTS, bits="BIT_STREAM", planes="BIT_PLANES"),
    "Search": numbered(native.SEARCHES, mse="NEIGHBOURS", **{"": "NO_SEARCH"}),
}


def assertions():
    yield "#include <cstddef>"
    yield "#include <type_traits>"
    yield from (f'#include "{name}"' for name in HEADERS)
    yield "using namespace blockscale;"
    for name, value in CONSTANTS.items():
        yield f"static_assert({name} == {value});"
    for name, numbers in ENUMS.items():
        yield from (f"static_assert({each} == {number});" for each, number in numbers.items())
        cases = " ".join(f"case {each}:" for each in numbers)
        yield f"void every_enumerator({name} value) {{ switch (value) {{ {cases} break; }} }}"
    for struct in STRUCTS:
        yield from _of_struct(struct)


def _of_struct(struct):
    name, fields = struct.__name__, struct._fields_
    yield f"static_assert(sizeof({name}) == {sizeof(struct)});"
    bound = ", ".join(field for field, _ in fields)
    yield f"void every_field({name}& value) {{ auto& [{bound}] = value; }}"
    for field, kind in fields:
        yield f"static_assert(offsetof({name}, {field}) == {getattr(struct, field).offset});"
        found = f"decltype({name}::{field})"
        if kind is c_void_p:
            yield f"static_assert(std::is_pointer_v<{found}>);"
        else:
            yield f"static_assert(std::is_same_v<{found}, {SCALARS.get(kind, kind.__name__)}>);"


def errors(*folders):
    """Of the compiler; headers are looked for in the first folder first."""
    options = ["-std=c++17", "-fsyntax-only", "-Werror=switch", "-xc++", "-"]
    command = ["c++", *(f"-I{folder}" for folder in (*folders, CSRC)), *options]
    text = "\n".join(assertions())
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def test_structs_and_numbers_are_those_of_the_header():
    assert errors() == ""


def test_nothing_of_the_header_is_left_out():
    text = (CSRC / "abi.h").read_text(encoding="utf-8")
    structs = {struct.__name__ for struct in STRUCTS} - {"OpenMp"}
    assert set(re.findall(r"^struct (\w+)", text, re.M)) == structs
    assert set(re.findall(r"^enum (\w+)", text, re.M)) == set(ENUMS)
    assert set(re.findall(r"^constexpr \w+ (\w+)", text, re.M)) == set(CONSTANTS)


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("int32_t* out;  // [rows]\n", "int32_t* out;\n  int32_t more;\n"),
        ("int32_t dtype;\n  float epsilon;", "float epsilon;\n  int32_t dtype;"),
        ("int32_t max_exponent;", "uint32_t max_exponent;"),
        ("  uint8_t* scales_out;\n", ""),
        ("BF16 = 7 }", "BF16 = 7, SVE = 8 }"),
        ("E4M3 = 1, E5M2 = 2", "E4M3 = 2, E5M2 = 1"),
        (", BY_BFMMLA = 5", ""),
    ],
    ids=[
        "a field more", "fields that change places", "another type", "a field less",
        "an enumerator more", "other numbers", "an enumerator less",
    ],
)  # fmt: skip
def test_a_change_of_the_header_alone_is_an_error(said, instead, tmp_path):
    text = (CSRC / "abi.h").read_text(encoding="utf-8")
    assert text.count(said) == 1
    changed = tmp_path / "abi.h"
    changed.write_text(text.replace(said, instead), encoding="utf-8")
    assert "error" in errors(tmp_path)
