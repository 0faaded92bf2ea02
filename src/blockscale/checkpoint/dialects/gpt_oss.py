"""gpt-oss: MXFP4 experts with blocks apart and gate and up rows interleaved. Read, not written.

    experts.gate_up_proj_blocks  U8 [e, 2i, h/32, 16]    rows: gate 0, up 0, gate 1, up 1, ...
    experts.gate_up_proj_scales  U8 [e, 2i, h/32]
    experts.gate_up_proj_bias       [e, 2i]              interleaved alike
    experts.down_proj_blocks, _scales, _bias             rows in order

Here both are [e, n, k], and gate_up_proj has all gate rows before all up rows.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from blockscale.checkpoint.dialects.contract import quant_method
from blockscale.checkpoint.files import Entry, Files
from blockscale.checkpoint.stored import Parts, Stored
from blockscale.formats import MXFP4
from blockscale.tensor import QTensor

NAME = "gpt-oss"
_BLOCK_BYTES = MXFP4.block * MXFP4.element.bits // 8
_INTERLEAVED = "gate_up_proj"


def recognises(files: Files) -> bool:
    return quant_method(files) == "mxfp4"


def find(files: Files) -> list[Stored]:
    found = []
    for entry in files.entries.values():
        if entry.name.endswith("_blocks"):
            found.append(_find_weight(files, entry))
        elif entry.name.endswith(f"{_INTERLEAVED}_bias"):
            found.append(Stored(entry.name, entry.shape, {"": entry}, _assemble_bias))
    return found


def _find_weight(files: Files, blocks: Entry) -> Stored:
    name = blocks.name.removesuffix("_blocks")
    scales = files.entries.get(f"{name}_scales")
    if scales is None:
        raise ValueError(f"{files.path}: {blocks.name} has no {name}_scales beside it")
    for entry in (blocks, scales):
        if entry.dtype != torch.uint8:
            raise ValueError(f"{files.path}: {entry.name} must be torch.uint8, got {entry.dtype}")
    if blocks.shape != (*scales.shape, _BLOCK_BYTES) or len(scales.shape) != 3:
        raise ValueError(
            f"{files.path}: {blocks.name} must be [e, n, k/32, {_BLOCK_BYTES}] and {scales.name} "
            f"[e, n, k/32], got {list(blocks.shape)} and {list(scales.shape)}"
        )
    shape = (*scales.shape[:-1], scales.shape[-1] * MXFP4.block)
    interleaved = name.endswith(_INTERLEAVED)
    parts = {"blocks": blocks, "scales": scales}
    return Stored(name, shape, parts, partial(_assemble, interleaved), MXFP4)


def _assemble(interleaved: bool, parts: Parts) -> QTensor:
    codes, scale = parts["blocks"].flatten(-2), parts["scales"]
    if interleaved:
        codes, scale = _gate_before_up(codes, -2), _gate_before_up(scale, -2)
    return QTensor.from_storage(MXFP4, codes, scale)


def _assemble_bias(parts: Parts) -> Tensor:
    return _gate_before_up(parts[""], -1)


def _gate_before_up(x: Tensor, dim: int) -> Tensor:
    gate_and_up = torch.arange(x.shape[dim]).unflatten(0, (-1, 2)).T  # [2, i]
    return x.index_select(dim, gate_and_up.flatten())
