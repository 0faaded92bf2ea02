"""Our own dialect: every format and every shape, as the library holds them.

    NAME_codes         U8   canonical codes: low nibble first, four 6-bit codes in three bytes, bit
                            planes for codebooks
    NAME_scale         U8   row-major block scales; F32 scales as their bytes
    NAME_tensor_scale  F32  one per matrix, where the format has one
    NAME_codebook      F32  [2^bits], where the element is a codebook

    NAME               U8   [bytes] the name of the format, or its spec: "codebook4/32:e4m4:pow2"

NAME is the full name of the tensor it replaces, such as `model.layers.0.mlp.up_proj.weight`, or
`model.layers.0.mlp.experts.gate_up_proj` for experts [e, n, k]: the names that `blockscale.nn`
modules have in a state dict. Where these keep gate, up and down apart, `experts.gate_up_proj` and
`experts.down_proj` are the names of the formats of gate and down. A loader that does not know this
dialect finds a shape there that it cannot use, and stops.

config.json has {"quant_method": "blockscale", "version": 2}, and "x_format" where all layers
quantise their inputs to one format on the fly. Version 1 had no names of formats beside the
tensors, but listed them: "tensors": {NAME: "kbit4"}.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from blockscale.checkpoint.dialects.contract import Contents, Description, quant_method
from blockscale.checkpoint.files import Entry, Files
from blockscale.checkpoint.stored import Parts, Stored, row_windows
from blockscale.formats import Format
from blockscale.formats import format as find_format
from blockscale.layouts import canonical
from blockscale.nn import labels
from blockscale.nn.labels import label, label_name, read_label, write_label
from blockscale.nn.packed import known_x_format
from blockscale.tensor import QTensor

NAME = labels.NAME
SHARES_TENSOR_SCALE = False
_READ = (1, labels.VERSION)
_LONGEST_LABEL = 64
_Found = TypeVar("_Found")


def recognises(files: Files) -> bool:
    return quant_method(files) == NAME


def find(files: Files) -> list[Stored]:
    found = files.description.get("version")
    if found not in _READ:
        raise ValueError(
            f"{files.path}: blockscale layout version {found!r} is not read here, only "
            f"{' and '.join(map(str, _READ))}"
        )
    return _listed(files) if found == 1 else _labelled(files)


def stated_x_format(files: Files) -> Format | str | None:
    """What config.json says that layers quantise their inputs to; other dialects cannot say it."""
    stated = files.description.get("x_format") if recognises(files) else None
    return None if stated is None else _named(files, "x_format", stated, known_x_format)


def _listed(files: Files) -> list[Stored]:
    tensors = files.description.get("tensors")
    if not isinstance(tensors, dict):
        raise ValueError(f"{files.path}: quantization_config lists no tensors")
    return [
        _find_one(files, name, _named(files, name, tensors[name], find_format)) for name in tensors
    ]


def _named(files: Files, what: str, name: Any, find: Callable[[str], _Found]) -> _Found:
    """What config.json names; whatever else it has there is an error that says where."""
    if not isinstance(name, str) or len(name) > _LONGEST_LABEL:
        raise ValueError(f"{files.path}: {what} must be the name of a format, got {name!r:.80}")
    try:
        return find(name)
    except ValueError as error:
        raise ValueError(f"{files.path}: {what}: {error}") from None


def _labelled(files: Files) -> list[Stored]:
    """Whatever has codes or scales, and bytes where a plain model has the numbers."""
    found: dict[str, Stored] = {}
    for entry in files.entries:
        name, _, role = entry.rpartition("_")
        label = files.entries.get(label_name(name))
        if role not in ("codes", "scale") or name in found or label is None:
            continue
        if label.dtype != torch.uint8 or len(label.shape) != 1:
            continue  # a plain tensor
        if label.nbytes > _LONGEST_LABEL:
            raise ValueError(f"{files.path}: {label.name} must name a format, got {label}")
        try:
            format = read_label(files.tensor(label.name))
        except ValueError as error:
            raise ValueError(f"{files.path}: {label.name}: {error}") from error
        found[name] = _find_one(files, name, format, {"label": label})
    return list(found.values())


def _find_one(
    files: Files, name: str, format: Format, others: Mapping[str, Entry] | None = None
) -> Stored:
    parts: dict[str, Entry] = {}
    for role in format.roles:
        entry = files.entries.get(f"{name}_{role}")
        if entry is None:
            raise ValueError(f"{files.path}: {name} is {format} but has no {role}")
        wanted = torch.uint8 if role in ("codes", "scale") else torch.float32
        if entry.dtype != wanted:
            raise ValueError(
                f"{files.path}: {entry.name} must have dtype {wanted}, got {entry.dtype}"
            )
        parts[role] = entry
    if len(parts["codes"].shape) < 2:
        raise ValueError(
            f"{files.path}: {name}_codes must be [..., n, bytes], got {list(parts['codes'].shape)}"
        )
    values = (1 << format.element.bits,)
    if "codebook" in parts and parts["codebook"].shape != values:
        raise ValueError(
            f"{files.path}: {name}_codebook must be {list(values)} for {format}, got "
            f"{list(parts['codebook'].shape)}"
        )
    shape = _shape(format, parts["codes"])
    _check_shapes(files, name, format, shape, parts)
    return Stored(
        name,
        shape,
        parts | dict(others or {}),
        partial(_assemble, format),
        format,
        row_windows(format, shape, *(role for role in format.roles if role != "codebook")),
    )


def _check_shapes(
    files: Files, name: str, format: Format, shape: tuple[int, ...], parts: Mapping[str, Entry]
) -> None:
    """Of scales for the shape that the codes imply: a part of a wrong file may look right."""
    wanted = {"scale": [canonical(format).scale_storage_shape(format, shape)]}
    if "tensor_scale" in parts:
        wanted["tensor_scale"] = [shape[:-2], shape[:-1]]
    for role, shapes in wanted.items():
        if parts[role].shape not in shapes:
            raise ValueError(
                f"{files.path}: {name}_codes holds {list(shape)}, so {name}_{role} must be "
                f"{' or '.join(str(list(each)) for each in shapes)}, got {list(parts[role].shape)}"
            )


def _shape(format: Format, codes: Entry) -> tuple[int, ...]:
    return (*codes.shape[:-1], codes.shape[-1] * 8 // format.element.bits)


def _assemble(format: Format, parts: Parts) -> QTensor:
    return QTensor.from_parts(format, {role: parts[role] for role in format.roles})


def refuses(name: str, format: Format, shape: tuple[int, ...]) -> str | None:
    return None


def split(name: str, value: QTensor | Tensor, quantized: Container[str]) -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {name: value}
    value = value.pack(canonical(value.format))
    return {
        **{f"{name}_{role}": part for role, part in value.parts.items()},
        label_name(name): write_label(value.format, value.device),
    }


def describe(contents: Contents) -> Description:
    """Tensors say themselves what they are."""
    config: dict[str, Any] = {"quant_method": NAME, "version": labels.VERSION}
    if contents.x_format is not None:
        config["x_format"] = label(contents.x_format)
    return Description(config)
