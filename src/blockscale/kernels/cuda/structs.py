"""Arguments of CUDA kernels, declared once: ctypes fields here, C++ members in a generated header.

    class Matrices(Structure):
        HEADER = Header("rows", "rows")
        MEMBERS = (Member("u8*", "data"), Member("long long", "row_stride", "bytes"))
        _fields_ = fields(MEMBERS)

`blockscale.kernels.cuda.headers` writes cuda/generated/rows.cuh from it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "long long": ctypes.c_longlong,
    "u8": ctypes.c_ubyte,
    "u32": ctypes.c_uint32,
    "TensorMap": ctypes.c_ubyte * 128,  # a CUtensorMap
}


class Header(NamedTuple):
    """Where the C++ struct is declared."""

    file: str  # of cuda/generated, without its suffix
    namespace: str  # in `bs`
    alignment: int = 0  # bytes, where C++ needs more than the members do


class Member(NamedTuple):
    type: str | type[ctypes.Structure]  # in the words of C++: a pointer, a number, another struct
    name: str
    note: str = ""  # becomes a comment
    length: int = 0  # of an array

    @property
    def spelled(self) -> str:
        return self.type if isinstance(self.type, str) else self.type.__name__

    @property
    def ctype(self) -> Any:
        if not isinstance(self.type, str):
            one: Any = self.type
        else:
            one = ctypes.c_void_p if self.type.endswith("*") else _TYPES[self.type]
        return one * self.length if self.length else one


def fields(members: Iterable[Member]) -> Sequence[tuple[str, Any]]:
    """What ctypes takes."""
    return [(member.name, member.ctype) for member in members]
