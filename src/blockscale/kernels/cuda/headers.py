"""C++ headers of what Python and the CUDA sources share: structs, enums, bits of fragments.

    python -m blockscale.kernels.cuda.headers      writes src/blockscale/cuda/generated

Python owns these facts. The headers are checked in, tests say whether they are current, and each
struct asserts the size and the offsets that ctypes has.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from enum import IntEnum

from blockscale import kernels
from blockscale.kernels.cuda.enums import NAMESPACES
from blockscale.kernels.cuda.structs import Header, Member
from blockscale.layouts.fragments import place
from blockscale.runtime.cuda import FOLDER

GENERATED = FOLDER / "generated"
_TRITON = "blockscale.kernels.matmul.portable.device"  # imported only where Triton is installed
_FRAGMENTS = ((2, False), (3, False), (4, False), (4, True), (5, True), (6, False), (8, False))


def headers() -> dict[str, str]:
    """The text of every header, by file name."""
    found = {"enums.cuh": _file("kernels/cuda/enums.py", [], list(_enums()))}
    found["fragments.cuh"] = _file("layouts/fragments.py", [], [_fragments()])
    by_file: dict[str, list[type[ctypes.Structure]]] = {}
    for struct in _structs():
        by_file.setdefault(_header(struct).file, []).append(struct)
    for file, structs in sorted(by_file.items()):
        owner = structs[0].__module__.removeprefix("blockscale.").replace(".", "/") + ".py"
        others = {_header(each).file for struct in structs for each in _parts(struct)} - {file}
        found[f"{file}.cuh"] = _file(owner, sorted(others), [_struct(each) for each in structs])
    return found


def _structs() -> Iterator[type[ctypes.Structure]]:
    """Of all kernel modules, each in the order in which it is declared."""
    for module in pkgutil.walk_packages(kernels.__path__, "blockscale.kernels."):
        if module.name.startswith(_TRITON):
            continue
        for each in vars(importlib.import_module(module.name)).values():
            is_struct = inspect.isclass(each) and issubclass(each, ctypes.Structure)
            if is_struct and hasattr(each, "HEADER") and each.__module__ == module.name:
                yield each


def _header(struct: type[ctypes.Structure]) -> Header:
    header: Header = vars(struct)["HEADER"]
    return header


def _members(struct: type[ctypes.Structure]) -> tuple[Member, ...]:
    members: tuple[Member, ...] = vars(struct)["MEMBERS"]
    return members


def _parts(struct: type[ctypes.Structure]) -> Iterator[type[ctypes.Structure]]:
    yield from (each.type for each in _members(struct) if not isinstance(each.type, str))


def _file(owner: str, includes: list[str], parts: list[str]) -> str:
    lines = [
        f"// Written by `python -m blockscale.kernels.cuda.headers` from blockscale/{owner}.",
        "#pragma once",
        '#include "base.cuh"',
        *(f'#include "generated/{name}.cuh"' for name in includes),
    ]
    return "\n".join(lines) + "\n\n" + "\n\n".join(parts) + "\n"


def _struct(struct: type[ctypes.Structure]) -> str:
    header, name = _header(struct), struct.__name__
    aligned = f"alignas({header.alignment}) " if header.alignment else ""
    note = vars(struct).get("__doc__")
    lines = [f"// {' '.join(note.split())}"] if note else []
    lines.append(f"struct {aligned}{name} {{")
    lines += [f"    {_member(member)}" for member in _members(struct)]
    lines += [
        "};",
        f'static_assert(sizeof({name}) == {ctypes.sizeof(struct)}, "as ctypes has it");',
    ]
    for member in _members(struct):
        offset = getattr(struct, member.name).offset
        lines.append(f'static_assert(BS_OFFSET_OF({name}, {member.name}) == {offset}, "");')
    return _in_namespace(header.namespace, lines)


def _member(member: Member) -> str:
    array = f"[{member.length}]" if member.length else ""
    note = f"  // {member.note}" if member.note else ""
    return f"{member.spelled} {member.name}{array};{note}"


def _enums() -> Iterator[str]:
    for enum, namespace in NAMESPACES.items():
        note = " ".join((enum.__doc__ or "").split())
        names = ", ".join(_enumerator(each) for each in enum)
        yield _in_namespace(namespace, [f"// {note}", f"enum {enum.__name__} {{ {names} }};"])


def _enumerator(each: IntEnum) -> str:
    return f"{each.name} = {each.value}"


def _fragments() -> str:
    lines = [
        "// Bit `bit` of code `value` of step `step` is bit at % 32 of word at / 32 of a lane.",
        "template <int BITS, bool FOLDED>",
        "constexpr int bit_place(int step, int value, int bit);",
    ]
    for bits, folded in _FRAGMENTS:
        table = f"BIT_PLACES_{bits}" + ("_FOLDED" if folded else "")
        lines += ["", f"constexpr u8 {table}[4][8][{bits}] = {{"]
        for step in range(4):
            lines.append("    {")
            for value in range(8):
                at = [place(bits, folded, step, value, bit) for bit in range(bits)]
                numbers = ", ".join(str(32 * word + within) for word, within in at)
                lines.append(f"        {{{numbers}}},")
            lines.append("    },")
        kind = f"{bits}, {str(folded).lower()}"
        lines += [
            "};",
            "template <>",
            f"constexpr int bit_place<{kind}>(int step, int value, int bit) {{",
            f"    return {table}[step][value][bit];",
            "}",
        ]
    return _in_namespace("decode", lines)


def _in_namespace(namespace: str, lines: list[str]) -> str:
    within = f"bs::{namespace}"
    return "\n".join([f"namespace {within} {{", "", *lines, "", f"}}  // namespace {within}"])


def write() -> None:
    GENERATED.mkdir(exist_ok=True)
    for name, text in headers().items():
        (GENERATED / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
