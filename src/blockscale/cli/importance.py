"""`--importance`: none, a file, or measured by running the model once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from blockscale.checkpoint import (
    ImportanceSource,
    Plan,
    check_importance,
    file_digest,
    importance_of,
    read_importance,
)
from blockscale.models import device_with_room, measure_checkpoint, why_not_measurable
from blockscale.runtime import resolve_device

AUTO, NONE = "auto", "none"
Say = Callable[[str], object]


def find_source(
    plan: Plan, asked: str, device: str, save: Path | None, say: Say
) -> ImportanceSource | None:
    """What the options mean for a conversion. Where nothing is measured, `say` tells why."""
    given = None if device == AUTO else resolve_device(device)
    if save is not None and not save.parent.is_dir():
        raise FileNotFoundError(f"--save-importance {save}: {save.parent} is no folder")
    if save is not None and save.is_dir():
        raise IsADirectoryError(f"--save-importance {save} is a folder: name a file in it")
    if asked not in (AUTO, NONE):
        return _from_file(plan, Path(asked), save)
    reason = _why_none(plan, asked, given)
    if not reason:
        return ImportanceSource("random token ids", lambda: _measured(plan, given, say), save)
    if save is not None:
        raise ValueError(f"--save-importance: there is none to save: {reason}")
    if asked == AUTO and plan.settings.scale == "mse":
        say(f"errors of all columns weigh the same: {reason}")
    return None


def _why_none(plan: Plan, asked: str, device: torch.device | None) -> str:
    if asked == NONE:
        return "--importance none"
    if plan.settings.scale != "mse":
        return "it needs --scale mse"
    return why_not_measurable(plan.checkpoint, device)


def _from_file(plan: Plan, path: Path, save: Path | None) -> ImportanceSource:
    if plan.settings.scale != "mse":
        raise ValueError(f"--importance {path}: it needs --scale mse, not {plan.settings.scale}")
    if path.is_dir():
        raise IsADirectoryError(f"--importance {path} is a folder: name a safetensors file")
    if not path.is_file():
        raise FileNotFoundError(f"--importance {path}: no such file; auto and none are no files")
    if plan.checkpoint.dialect is not None:
        raise ValueError(f"--importance {path}: {plan.checkpoint.files.path} is quantised already")
    found = read_importance(path)
    check_importance(found, plan.checkpoint.tensors)
    return ImportanceSource(f"sha256 {file_digest(path)}", lambda: found, save)


def _measured(plan: Plan, device: torch.device | None, say: Say) -> Mapping[str, Tensor]:
    """Of the whole model. One that does not run is quantised without, which is said."""
    device = device or device_with_room(plan.checkpoint)
    quantised = [name for name, choice in plan.choices.items() if choice.format]
    say(f"measuring the inputs of all layers on random token ids, on {device}")
    try:
        found = measure_checkpoint(plan.checkpoint.files.folder, quantised, device)
    except (RuntimeError, ValueError, TypeError, OSError, ImportError, KeyError) as error:
        say(f"errors of all columns weigh the same: {error}")
        return {}
    having = sum(importance_of(name, found) is not None for name in quantised)
    say(f"errors are weighed in {having} of {len(quantised)} tensors")
    return found
