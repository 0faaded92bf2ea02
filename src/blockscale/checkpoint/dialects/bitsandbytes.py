"""bitsandbytes: nf4 and fp4, also with absmax quantised once more. Read, not written.

    weight                                 U8 [n * k / 2, 1], high nibble first, rows run on; the
                                           same bytes in another dtype, as bnb_4bit_quant_storage
                                           says, so that FSDP shards them with plain weights
    weight.absmax                          F32 per block, or U8 codes of it
    weight.quant_map                       F32 [16], what each code means
    weight.nested_absmax, .nested_quant_map   decode the U8 absmax, in blocks of their own
    weight.quant_state.bitsandbytes__nf4   JSON as bytes: shape, block sizes, nested offset

Blocks run over the flattened tensor; here they must not cross rows, so k must be a multiple of
the block. Codes are renumbered so that the table ascends.
"""

from __future__ import annotations

from functools import partial
from math import copysign, prod
from typing import Any

import torch
from torch import Tensor

from blockscale.checkpoint.dialects.contract import quant_method
from blockscale.checkpoint.files import Entry, Files
from blockscale.checkpoint.stored import Parts, Stored, named
from blockscale.formats import BNB_FP4, BNB_NF4, Format
from blockscale.layouts import canonical
from blockscale.runtime import Limits, parse_json
from blockscale.tensor import QTensor

NAME = "bitsandbytes"
_FORMATS = {"nf4": BNB_NF4, "fp4": BNB_FP4}
_STATE = ".quant_state.bitsandbytes__"
_LARGEST_FLOAT = torch.finfo(torch.float32).max
_STATE_LIMITS = Limits(nbytes=2**12, values=32, depth=2)


def recognises(files: Files) -> bool:
    return quant_method(files) == NAME


def find(files: Files) -> list[Stored]:
    if files.description.get("load_in_8bit"):
        raise ValueError(f"{files.path}: bitsandbytes in 8 bits is not read: only nf4 and fp4")
    return [_find_weight(files, name) for name in files.entries if _STATE in name]


def _find_weight(files: Files, state_name: str) -> Stored:
    name, _, kind = state_name.partition(_STATE)
    state = _read_state(files, files.entries[state_name])
    if kind not in _FORMATS:
        raise ValueError(f"{files.path}: {name} is {kind!r}; bitsandbytes has nf4 and fp4")
    block, (n, k) = state["blocksize"], state["shape"]
    if k % block:
        raise ValueError(
            f"{files.path}: {name} has blocks of {block} that cross its rows of {k}: dequantise "
            "it with bitsandbytes first"
        )
    blocks = n * k // block
    wanted = {".quant_map": 16}
    if "nested_offset" in state:
        nested = -(-blocks // state["nested_blocksize"])
        wanted |= {".absmax": blocks, ".nested_absmax": nested, ".nested_quant_map": 256}
    else:
        wanted[".absmax"] = blocks
    packed = _packed(files, name, n * k // 2)
    parts = {role: _part(files, name, role, count) for role, count in wanted.items()}
    bytes_ = {".absmax": torch.uint8 if "nested_offset" in state else torch.float32}
    for role, entry in parts.items():
        if entry.dtype != bytes_.get(role, torch.float32):
            raise ValueError(f"{files.path}: {entry.name} has dtype {entry.dtype}")
    parts = {"": packed, **parts, "state": files.entries[state_name]}
    format = named(_FORMATS[kind].replace(block=block))
    return Stored(name, (n, k), parts, partial(_assemble, format, state), format)


def _read_state(files: Files, entry: Entry) -> dict[str, Any]:
    if entry.dtype != torch.uint8 or entry.nbytes > _STATE_LIMITS.nbytes:
        raise ValueError(f"{files.path}: {entry.name} must be a few bytes, got {entry}")
    where = f"{files.path}: {entry.name}"
    state = parse_json(bytes(files.tensor(entry.name).flatten().tolist()), _STATE_LIMITS, where)
    try:
        _check_state(state)
    except ValueError as error:
        raise ValueError(f"{where} is no state of a matrix: {error}") from None
    return state


def _check_state(state: dict[str, Any]) -> None:
    """Every number that is used."""
    shape = state.get("shape")
    if not isinstance(shape, list) or len(shape) != 2:
        raise ValueError(f"its shape must be [n, k], got {shape!r}")
    sizes = [*shape, state.get("blocksize")]
    if "nested_offset" in state:
        sizes.append(state.get("nested_blocksize"))
        offset = state["nested_offset"]
        if type(offset) not in (int, float) or not abs(offset) <= _LARGEST_FLOAT:
            raise ValueError(f"nested_offset must be a number, got {offset!r:.40}")
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(f"sizes must be positive, got {sizes}")
    if prod(shape) % 2:
        raise ValueError(f"two codes make a byte, and its shape {shape} has an odd number")


def _packed(files: Files, name: str, nbytes: int) -> Entry:
    """Of whatever dtype: what counts are its bytes."""
    entry = files.entries.get(name)
    if entry is None:
        raise ValueError(f"{files.path}: {name} has a quant_state and is missing: fetch it again")
    if entry.nbytes != nbytes:
        raise ValueError(
            f"{files.path}: {entry.name} must have {nbytes} bytes, got {entry.dtype} "
            f"{list(entry.shape)}"
        )
    return entry


def _part(files: Files, name: str, role: str, count: int) -> Entry:
    entry = files.entries.get(name + role)
    if entry is None:
        raise ValueError(f"{files.path}: {name} is quantised but {name + role} is missing")
    if entry.nbytes != count * entry.dtype.itemsize:
        raise ValueError(
            f"{files.path}: {entry.name} must have {count} values, got shape {list(entry.shape)}"
        )
    return entry


def _assemble(format: Format, state: dict[str, Any], parts: Parts) -> QTensor:
    n, k = state["shape"]
    packed = parts[""].flatten().view(torch.uint8)
    nibbles = torch.stack([packed >> 4, packed & 15], -1).reshape(n, k)
    table, rank = _ascending(parts[".quant_map"])
    format = named(format.replace(codebook=table.tolist()))
    codes = canonical(format).pack_codes(rank[nibbles.to(torch.int32)], format)
    scale = _absmax(state, parts).reshape(n, -1).contiguous().view(torch.uint8)
    return QTensor.from_storage(format, codes, scale, codebook=table)


def _ascending(table: Tensor) -> tuple[Tensor, Tensor]:
    """The sorted table, -0 before 0, and the new number of each code."""
    values = table.tolist()
    order = sorted(range(len(values)), key=lambda code: (values[code], copysign(1, values[code])))
    rank = torch.empty(len(values), dtype=torch.uint8)
    rank[torch.tensor(order)] = torch.arange(len(values), dtype=torch.uint8)
    return table[torch.tensor(order)], rank


def _absmax(state: dict[str, Any], parts: Parts) -> Tensor:
    """float32, one per block. The second quantisation subtracts a mean and scales in blocks."""
    absmax = parts[".absmax"].flatten()
    if "nested_offset" not in state:
        return absmax
    size = min(state["nested_blocksize"], absmax.numel())
    outer = parts[".nested_absmax"].repeat_interleave(size)[: absmax.numel()]
    inner = parts[".nested_quant_map"][absmax.to(torch.int64)]
    return inner * outer + torch.tensor(state["nested_offset"], dtype=torch.float32)
