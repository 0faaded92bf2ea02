"""`save`: tensors or a module into a checkpoint, in one of the dialects that are written."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from blockscale.checkpoint.contents import describe
from blockscale.checkpoint.description import DESCRIPTION, without_description
from blockscale.checkpoint.dialects import WritableDialect, default_dialect, writable
from blockscale.checkpoint.files import CONFIG, INDEX
from blockscale.checkpoint.finite import check_finite
from blockscale.checkpoint.shards import (
    Outline,
    Shard,
    index_of,
    plan_shards,
    write_json,
    write_shard,
)
from blockscale.checkpoint.stored import named
from blockscale.formats import Format
from blockscale.layouts import canonical
from blockscale.nn.labels import label_name
from blockscale.nn.packed import PackedModule
from blockscale.nn.projections import check_shared
from blockscale.nn.saved_config import common_x_format
from blockscale.runtime import sync_folder
from blockscale.tensor import QTensor

SHARD_SIZE = 5 * 10**9
Tensors = Mapping[str, "QTensor | Tensor"]


def save(
    module_or_tensors: nn.Module | Tensors,
    path: str | Path,
    *,
    dialect: str | None = None,
    config: Mapping[str, Any] | None = None,
    shard_size: int = SHARD_SIZE,
) -> None:
    """Write a checkpoint, as one file (a path ending in .safetensors) or as a new folder.

    dialect  "compressed-tensors" (the default where it holds the tensors), "modelopt", "blockscale"
    config   what config.json says of the model; a module that has a `config` brings its own. What
             it says of quantisation is replaced

    Nothing is written unless everything can be, and it appears by atomic rename.
    """
    path = Path(path)
    x_format: Format | str | None = None
    if isinstance(module_or_tensors, nn.Module):
        tensors, x_format = module_tensors(module_or_tensors), common_x_format(module_or_tensors)
        if config is None:
            config = _config_of(module_or_tensors)
    else:
        tensors = dict(module_or_tensors)
    quantized = {name: q for name, q in tensors.items() if isinstance(q, QTensor)}
    kinds = ((name, q.format, q.shape) for name, q in quantized.items())
    writer = writable(dialect or default_dialect(kinds))
    tensors = {name: _canonical(value) for name, value in tensors.items()}
    _check(tensors, writer)
    outlines = _outlines(tensors, writer)
    formats = {name: q.format for name, q in quantized.items()}
    plain = {name: tuple(each.shape) for name, each in tensors.items() if name not in formats}
    description = describe(writer, formats, plain, x_format)
    if path.suffix == ".safetensors":
        metadata = {DESCRIPTION: json.dumps(description.config)} if quantized else {}
        together = {part: each for unit in outlines for part, each in unit.items()}
        (shard,) = plan_shards([together], shard_size)
        _write(path.parent, Shard(path.name, shard.outlines), tensors, writer, metadata)
        return
    written = {CONFIG: without_description(config or {})}
    if quantized:
        written[CONFIG][DESCRIPTION] = description.config
        written |= description.files
    _write_folder(path, tensors, writer, written, plan_shards(outlines, shard_size))


def module_tensors(module: nn.Module) -> dict[str, QTensor | Tensor]:
    """A state dict with the parts of each quantised weight put together."""
    tensors: dict[str, QTensor | Tensor] = dict(module.state_dict())
    for name, value in tensors.items():
        if hasattr(value, "full_tensor"):  # a DTensor
            raise ValueError(
                f"save: {name} is shared by several ranks, and this one has a part of it: let "
                "every rank call model.save_pretrained, or `full_tensor()`, and save the whole"
            )
    for path, layer in module.named_modules(remove_duplicate=False):
        if not isinstance(layer, PackedModule):
            continue
        for weight, q in layer.qtensors().items():
            name = f"{path}.{weight}" if path else weight
            del tensors[label_name(name)]
            parts = {role: tensors.pop(f"{name}_{role}") for role in q.format.roles}
            plain = {role: _plain(part) for role, part in parts.items()}
            tensors[name] = QTensor.from_parts(
                named(q.format), plain
            )  # dialects know formats by name
    return tensors


def _config_of(module: Any) -> Mapping[str, Any] | None:
    """A model of transformers has its config."""
    to_dict = getattr(getattr(module, "config", None), "to_dict", None)
    return to_dict() if to_dict else None


def _plain(part: QTensor | Tensor) -> Tensor:
    if isinstance(part, QTensor):
        raise TypeError(f"expected a plain tensor, got {part}")
    return part


def _canonical(value: QTensor | Tensor) -> QTensor | Tensor:
    return value.pack(canonical(value.format)) if isinstance(value, QTensor) else value


def _check(tensors: Tensors, writer: WritableDialect) -> None:
    """Everything that could go wrong, before anything is written."""
    quantized = []
    for name, value in tensors.items():
        if not isinstance(value, (QTensor, Tensor)):
            raise TypeError(
                f"save: {name} must be a Tensor or a QTensor, got {type(value).__name__}"
            )
        if not isinstance(value, QTensor):
            continue
        refusal = writer.refuses(name, value.format, value.shape)
        if refusal is not None:
            raise ValueError(f"save: {name}: {refusal}; dialect='blockscale' holds every format")
        if value.tensor_scale is not None and value.tensor_scale.shape != value.shape[:-2]:
            raise ValueError(f"save: {name} has one tensor scale per row; weights have one")
        check_finite(name, value, "repair the weight, or keep its layer unquantised")
        quantized.append((name, value))
    if writer.SHARES_TENSOR_SCALE:
        check_shared(quantized)


def _quantized(tensors: Tensors) -> set[str]:
    return {name for name, value in tensors.items() if isinstance(value, QTensor)}


def _outlines(tensors: Tensors, writer: WritableDialect) -> list[dict[str, Outline]]:
    """Of each tensor, what is written for it. No two may be written under one name."""
    found, origin, quantized = [], dict[str, str](), _quantized(tensors)
    for name, value in tensors.items():
        split = writer.split(name, value, quantized)
        parts = {part: Outline.of(tensor) for part, tensor in split.items()}
        for part in parts:
            if part in origin:
                raise ValueError(
                    f"save: {origin[part]} and {name} would both be written as {part}: rename one"
                )
        origin |= dict.fromkeys(parts, name)
        found.append(parts)
    return found


def _write(
    folder: Path,
    shard: Shard,
    tensors: Tensors,
    writer: WritableDialect,
    metadata: Mapping[str, str] | None = None,
) -> None:
    quantized = _quantized(tensors)
    parts = (
        (part, tensor)
        for name, value in tensors.items()
        for part, tensor in writer.split(name, value, quantized).items()
        if part in shard.outlines
    )
    write_shard(folder, shard, parts, metadata)


def _write_folder(
    path: Path,
    tensors: Tensors,
    writer: WritableDialect,
    descriptions: Mapping[str, Mapping[str, Any]],
    shards: list[Shard],
) -> None:
    check_absent(path)
    work = path.with_name(f"{path.name}.partial-{secrets.token_hex(8)}")
    work.mkdir(parents=True)
    try:
        for shard in shards:
            _write(work, shard, tensors, writer)
        if len(shards) > 1:
            write_json(work / INDEX, index_of(shards))
        for name, content in descriptions.items():
            write_json(work / name, content)
        rename_folder(work, path)
    except BaseException:
        shutil.rmtree(work)
        raise


def rename_folder(work: Path, path: Path) -> None:
    """Unless another writer was first, whose folder then stays as it is."""
    try:
        work.replace(path)
    except OSError:
        check_absent(path)
        raise
    sync_folder(path.parent)


def check_absent(path: Path) -> None:
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise FileExistsError(f"{path} exists already: choose another name, or remove it first")
