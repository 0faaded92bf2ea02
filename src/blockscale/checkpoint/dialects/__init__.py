"""How other libraries, and ours, write quantised weights: one file for each dialect.

Reciprocal scales, interleaved rows, reversed nibbles and flattened blocks are translated here, and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import cast

from blockscale.checkpoint.dialects import (
    bitsandbytes,
    blockscale,
    compressed_tensors,
    gpt_oss,
    modelopt,
)
from blockscale.checkpoint.dialects.contract import (
    Contents,
    Description,
    Dialect,
    WritableDialect,
    quant_method,
)
from blockscale.checkpoint.files import Entry, Files
from blockscale.formats import MXFP4, Format

WRITABLE: dict[str, WritableDialect] = {
    dialect.NAME: dialect for dialect in (compressed_tensors, modelopt, gpt_oss, blockscale)
}
# Ends of names that parts of packed weights have, and of a tensor that must then be beside them.
# Parts of our own have the name of their format beside them, wherever they are.
_SIGNS = {
    ".weight_packed": ".weight_packed",
    ".weight_scale": ".weight",
    "_proj_blocks": "_proj_scales",
    ".weight.absmax": ".weight.quant_map",
}
_WEIGHT = ".weight"
_KEPT = ("ignore", "modules_to_not_convert")  # what a description calls modules that stay plain
READABLE: dict[str, Dialect] = {
    **cast("dict[str, Dialect]", WRITABLE),
    bitsandbytes.NAME: bitsandbytes,
}


def dialect_of(files: Files) -> Dialect | None:
    """The dialect a checkpoint is written in; None for plain weights."""
    for dialect in READABLE.values():
        if dialect.recognises(files):
            return dialect
    method = quant_method(files)
    if method is None:
        _check_plain(files)
        return None
    raise ValueError(
        f"{files.path}: quant_method {method!r} is not read here, only {', '.join(READABLE)}"
    )


def _check_plain(files: Files) -> None:
    """Bytes that no config explains would pass for numbers."""
    for name in files.entries:
        for end, other in _SIGNS.items():
            beside = files.entries.get(name.removesuffix(end) + other)
            if name.endswith(end) and beside is not None and _may_be_part(beside):
                told = (
                    "config.json does not say how it is quantised: fetch that again"
                    if files.path.is_dir()
                    else "this file alone does not say how it is quantised: name its folder"
                )
                raise ValueError(f"{files.path}: {name} is part of a quantised weight, and {told}")


def _may_be_part(entry: Entry) -> bool:
    """Of a weight itself only bytes are, and the names of formats are rows of them."""
    return not entry.name.endswith(_WEIGHT) or _is_codes(entry)


def _is_codes(weight: Entry) -> bool:
    return weight.dtype.itemsize == 1 and len(weight.shape) > 1


def check_unclaimed(files: Files, dialect: Dialect, entry: Entry) -> None:
    """Codes whose scales are missing would pass for numbers. Our own say themselves what they are,
    and the others name the modules that stay plain."""
    if dialect.NAME == blockscale.NAME or not entry.name.endswith(_WEIGHT) or not _is_codes(entry):
        return
    described = files.description or {}
    listed = [described.get(key) for key in _KEPT]
    kept = [name for names in listed if isinstance(names, list) for name in names]
    if entry.name.removesuffix(_WEIGHT) not in kept:
        raise ValueError(
            f"{files.path}: {entry.name} is {entry.dtype}, and has no scales of {dialect.NAME} "
            "beside it: fetch it again"
        )


def writable(name: str) -> WritableDialect:
    if name not in WRITABLE:
        raise ValueError(f"unknown dialect {name!r}: use one of {', '.join(WRITABLE)}")
    return WRITABLE[name]


def default_dialect(
    tensors: Iterable[tuple[str, Format, tuple[int, ...]]],
    model_type: str = "",
    never_plain: Container[str] = (),
) -> str:
    """compressed-tensors where it holds all of (name, format, shape): most engines read it.

    MXFP4 for GPT-OSS is what that model is published in, and its other layers stay plain: not those
    of `never_plain`, which are quantised already.
    """
    tensors = list(tensors)
    if model_type == "gpt_oss" and all(
        format == MXFP4 and not (name in never_plain and gpt_oss.refuses(name, format, shape))
        for name, format, shape in tensors
    ):
        return gpt_oss.NAME
    if all(compressed_tensors.refuses(*tensor) is None for tensor in tensors):
        return compressed_tensors.NAME
    return blockscale.NAME


__all__ = [
    "READABLE",
    "WRITABLE",
    "Contents",
    "Description",
    "Dialect",
    "WritableDialect",
    "check_unclaimed",
    "default_dialect",
    "dialect_of",
    "writable",
]
