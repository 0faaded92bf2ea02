"""The formats that have names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from blockscale.formats.elements import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M4,
    E5M2,
    E8M0,
    F32,
    INTEGERS,
    UE4M3,
    Codebook,
    normal_float,
)
from blockscale.formats.format import Format, parse_spec

NVFP4 = Format(name="nvfp4", element=E2M1, block=16, scale=UE4M3, tensor_scale="amax")

MXFP4 = Format(name="mxfp4", element=E2M1, block=32, scale=E8M0)
MXFP6_E2M3 = Format(name="mxfp6_e2m3", element=E2M3, block=32, scale=E8M0)
MXFP6_E3M2 = Format(name="mxfp6_e3m2", element=E3M2, block=32, scale=E8M0)
MXFP8 = Format(name="mxfp8", element=E4M3, block=32, scale=E8M0)
MXFP8_E5M2 = Format(name="mxfp8_e5m2", element=E5M2, block=32, scale=E8M0)

KBIT2 = Format(name="kbit2", element=normal_float(2), block=32, scale=E4M4, tensor_scale="pow2")
KBIT3 = Format(name="kbit3", element=normal_float(3), block=32, scale=E4M4, tensor_scale="pow2")
KBIT4 = Format(name="kbit4", element=normal_float(4), block=32, scale=E4M4, tensor_scale="pow2")
KBIT5 = Format(name="kbit5", element=normal_float(5), block=32, scale=E4M4, tensor_scale="pow2")

# The tables of bitsandbytes, ascending. Its FP4 numbers its codes otherwise and has two zeros;
# reading a checkpoint renumbers them.
_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_FP4 = (0.0, 0.0052083334, 0.16666667, 0.25, 0.33333334, 0.5, 0.6666667, 1.0)

BNB_NF4 = Format(name="bnb_nf4", element=Codebook(bits=4, values=_NF4), block=64, scale=F32)
BNB_FP4 = Format(
    name="bnb_fp4",
    element=Codebook(bits=4, values=(*(-value for value in reversed(_FP4)), *_FP4)),
    block=64,
    scale=F32,
)

INT8 = Format(name="int8", element=INTEGERS, block=32, scale=F32)  # for activations

CATALOGUE: dict[str, Format] = {
    entry.name: entry
    for entry in (
        NVFP4,
        MXFP4,
        MXFP6_E2M3,
        MXFP6_E3M2,
        MXFP8,
        MXFP8_E5M2,
        KBIT2,
        KBIT3,
        KBIT4,
        KBIT5,
        BNB_NF4,
        BNB_FP4,
    )
}


def format(name: str | Format) -> Format:
    """A format by name ("nvfp4", any case) or by spec ("e2m1/16:ue4m3:amax")."""
    return _find(name, CATALOGUE)


def activation_format(name: str | Format) -> Format:
    """What x may be quantised to: every format of weights, and "int8"."""
    return _find(name, {**CATALOGUE, INT8.name: INT8})


def _find(name: str | Format, known: Mapping[str, Format]) -> Format:
    if isinstance(name, Format):
        return name
    if not isinstance(name, str):
        raise TypeError(f"format: expected a Format or its name, got {type(name).__name__}")
    key = name.strip().lower().replace("-", "_")
    if key in known:
        return known[key]
    if "/" in name:
        return parse_spec(name)
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise ValueError(f"unknown format {name!r}: {hint}Known: {', '.join(known)}")
