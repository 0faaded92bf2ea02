"""Enumerations that Python and the CUDA sources share; cuda/generated/enums.cuh has them in C++."""

from __future__ import annotations

from enum import IntEnum


class Dtype(IntEnum):
    """Of biases and outputs."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2


class Specials(IntEnum):
    """What the largest codes of a small float are: numbers, one NaN, or infinity and NaNs."""

    NUMBERS = 0
    ONE_NAN = 1
    IEEE = 2


class TensorScale(IntEnum):
    """None, one that is given, or how one is derived from the amax."""

    NONE = 0
    GIVEN = 1
    FROM_LARGEST = 2
    POWER = 3


class Element(IntEnum):
    """Of weights that a GEMM decodes."""

    E2M1 = 0
    E2M3 = 1
    E3M2 = 2
    E4M3 = 3
    E5M2 = 4
    TABLE = 5


class Scale(IntEnum):
    """Of blocks of weights that a GEMM decodes."""

    UE4M3 = 0
    E8M0 = 1
    E4M4 = 2


class Packing(IntEnum):
    """Of canonical codes."""

    BIT_STREAM = 0
    BIT_PLANES = 1


class Search(IntEnum):
    """How candidates for the scale of a block are found; the earlier one wins a tie."""

    FROM_AMAX = 0
    NEIGHBOURS = 1
    FOUR_OVER_SIX = 2


class Activation(IntEnum):
    """Of a gated product."""

    NONE = 0
    SILU = 1
    GELU = 2
    GELU_TANH = 3
    SWIGLU_OAI = 4


NAMESPACES: dict[type[IntEnum], str] = {
    Dtype: "numbers",
    Specials: "numbers",
    TensorScale: "numbers",
    Element: "decode",
    Scale: "decode",
    Packing: "rows",
    Search: "scale_search",
    Activation: "gemm",
}
