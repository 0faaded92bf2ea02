"""What errors cost in each column of a checkpoint's weights: found by name, kept in a file.

The file is safetensors: the name of a layer, such as "model.layers.0.mlp.down_proj", and float32
[k]; for fused experts [k] or [experts, k].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from blockscale.checkpoint.files import Files
from blockscale.checkpoint.shards import Outline, Shard, write_shard
from blockscale.checkpoint.stored import Stored
from blockscale.nn.importance import check_numbers

_WEIGHT = ".weight"
# One expert of several, where a model fuses what its checkpoint keeps apart.
_EXPERT = re.compile(r"(?P<experts>.*\.experts)\.(?P<number>\d+)\.(?P<part>gate|up|down)_proj")


@dataclass(frozen=True)
class ImportanceSource:
    """Where importance is from. A run that goes on after another must name the same one."""

    identity: str
    find: Callable[[], Mapping[str, Tensor]]
    copy: Path | None = None  # a file that is to hold it too


def importance_of(name: str, importance: Mapping[str, Tensor]) -> Tensor | None:
    """That of a tensor, by the name of its layer; for one of several experts, its own part."""
    layer = name.removesuffix(_WEIGHT)
    if layer in importance:
        return importance[layer]
    match = _EXPERT.fullmatch(layer)
    if match is None:
        return None
    part = "down_proj" if match["part"] == "down" else "gate_up_proj"
    found = importance.get(f"{match['experts']}.{part}")
    if found is None or found.dim() == 1:
        return found
    return found[int(match["number"])] if int(match["number"]) < len(found) else None


def read_importance(path: Path) -> dict[str, Tensor]:
    files = Files(path)
    found = {name: files.tensor(name) for name in files.entries}
    for name, values in found.items():
        if not values.is_floating_point() or values.dim() not in (1, 2) or not values.numel():
            raise ValueError(
                f"{path}: {name} must be numbers [k] or [experts, k], got {values.dtype} "
                f"{list(values.shape)}"
            )
        check_numbers(str(path), name, values)
    return found


def write_importance(path: Path, importance: Mapping[str, Tensor]) -> None:
    held = {name: values.to("cpu", torch.float32) for name, values in importance.items()}
    shard = Shard(path.name, {name: Outline.of(values) for name, values in held.items()})
    write_shard(path.parent, shard, held.items())


def check_importance(importance: Mapping[str, Tensor], tensors: Mapping[str, Stored]) -> None:
    """Every name is that of a layer and fits it: a file for another model is found out here."""
    layers = {name.removesuffix(_WEIGHT) for name in tensors}
    layers |= {
        f"{match['experts']}.{part}"
        for match in map(_EXPERT.fullmatch, layers)
        if match
        for part in ("gate_up_proj", "down_proj")
    }
    for name in importance:
        if name not in layers:
            raise ValueError(f"importance has {name!r}, and the checkpoint no such layer")
    for name, stored in tensors.items():
        values = importance_of(name, importance)
        if values is None or len(stored.shape) < 2:
            continue
        *lead, _, k = stored.shape
        if list(values.shape) not in ([k], [*lead, k]):
            raise ValueError(
                f"importance of {name} {list(stored.shape)} must be [{k}], got {list(values.shape)}"
            )
