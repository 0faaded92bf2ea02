"""gpt-oss: MXFP4 experts with blocks apart and gate and up rows interleaved.

    experts.gate_up_proj_blocks  U8 [e, 2i, h/32, 16]    rows: gate 0, up 0, gate 1, up 1, ...
    experts.gate_up_proj_scales  U8 [e, 2i, h/32]
    experts.gate_up_proj_bias       [e, 2i]              interleaved alike
    experts.down_proj_blocks, _scales, _bias             rows in order

Here both are [e, n, k], and gate_up_proj has all gate rows before all up rows. Experts that a file
keeps plain are as the model wants them, biases too.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial

import torch
from torch import Tensor

from blockscale.checkpoint.dialects.contract import Contents, Description, quant_method
from blockscale.checkpoint.dialects.parts import gate_and_up_in_turn, gate_before_up
from blockscale.checkpoint.files import Entry, Files
from blockscale.checkpoint.stored import Parts, Ranges, Stored, Windows
from blockscale.formats import MXFP4, Format
from blockscale.tensor import QTensor

NAME = "gpt-oss"
SHARES_TENSOR_SCALE = False
_METHOD = "mxfp4"
METHODS = (_METHOD, "gpt_oss_mxfp4")  # vLLM's name for it is the second
_BLOCK_BYTES = MXFP4.block * MXFP4.element.bits // 8
_INTERLEAVED, _DOWN = "gate_up_proj", "down_proj"
_BIAS = "_bias"


# --- reading ---


def recognises(files: Files) -> bool:
    return quant_method(files) in METHODS


def find(files: Files) -> list[Stored]:
    found = []
    for entry in files.entries.values():
        if entry.name.endswith("_blocks"):
            found.append(_find_weight(files, entry))
        elif _is_interleaved_bias(entry.name) and _blocks_of(entry.name) in files.entries:
            windows = partial(_windows, entry.shape, [""], _INTERLEAVED)
            parts = {"": entry}
            found.append(Stored(entry.name, entry.shape, parts, _assemble_bias, windows=windows))
    return found


def _is_interleaved_bias(name: str) -> bool:
    return name.endswith(_INTERLEAVED + _BIAS)


def _blocks_of(bias: str) -> str:
    return f"{bias.removesuffix(_BIAS)}_blocks"


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
    windows = partial(_windows, shape, list(parts), name.rpartition(".")[2])
    return Stored(name, shape, parts, partial(_assemble, interleaved), MXFP4, windows)


def _windows(
    shape: tuple[int, ...], roles: list[str], leaf: str, axis: int, ranges: Ranges
) -> Windows:
    """Rows of gate and the same rows of up lie together; columns are stored by block."""
    if axis == 1 and leaf == _INTERLEAVED:
        half = shape[1] // 2
        (start, stop), *others = ranges
        if others != [(half + start, half + stop)]:
            raise ValueError(
                "gpt-oss stores gate and up rows in turn: read the same rows of both, with pieces=2"
            )
        ranges = ((2 * start, 2 * stop),)
    if axis == 2:
        ranges = tuple((start // MXFP4.block, stop // MXFP4.block) for start, stop in ranges)
    return dict.fromkeys(roles, (axis, ranges))


def _assemble(interleaved: bool, parts: Parts) -> QTensor:
    codes, scale = parts["blocks"].flatten(-2), parts["scales"]
    if interleaved:
        codes, scale = gate_before_up(codes, -2), gate_before_up(scale, -2)
    return QTensor.from_storage(MXFP4, codes, scale)


def _assemble_bias(parts: Parts) -> Tensor:
    return gate_before_up(parts[""], -1)


# --- writing ---


def refuses(name: str, format: Format, shape: tuple[int, ...]) -> str | None:
    if format != MXFP4:
        return f"gpt-oss checkpoints hold mxfp4, not {format}"
    if len(shape) != 3 or not name.endswith((f".{_INTERLEAVED}", f".{_DOWN}")):
        return "gpt-oss checkpoints hold experts [e, n, k] in mxfp4, and all else plain"
    if name.endswith(_INTERLEAVED) and shape[1] % 2:
        return f"gate and up must have as many rows, and together it has {shape[1]}"
    return None


def split(name: str, value: QTensor | Tensor, quantized: Container[str]) -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        turned = _is_interleaved_bias(name) and name.removesuffix(_BIAS) in quantized
        return {name: gate_and_up_in_turn(value, -1) if turned else value}
    codes, scale = value.codes, value.scale
    if name.endswith(_INTERLEAVED):
        codes, scale = gate_and_up_in_turn(codes, -2), gate_and_up_in_turn(scale, -2)
    return {f"{name}_blocks": codes.unflatten(-1, (-1, _BLOCK_BYTES)), f"{name}_scales": scale}


def describe(contents: Contents) -> Description:
    return Description({"quant_method": _METHOD, "modules_to_not_convert": contents.kept})
