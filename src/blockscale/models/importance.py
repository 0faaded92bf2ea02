"""Measuring the inputs of a checkpoint's layers, which takes the whole model once."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from blockscale.checkpoint import Checkpoint
from blockscale.models.load import load_model
from blockscale.models.precision import best_dtype
from blockscale.nn import measure_importance
from blockscale.runtime import available_memory, resolve_device

_CPU = torch.device("cpu")
_ROOM = 1.25  # of the weights, for activations and what else is needed


def device_with_room(checkpoint: Checkpoint) -> torch.device:
    """The GPU, where there is one and the model of a checkpoint fits; else the CPU."""
    if torch.cuda.is_available():
        gpu = resolve_device("cuda")
        if not _why_no_room(checkpoint, gpu):
            return gpu
    return _CPU


def why_not_measurable(checkpoint: Checkpoint, device: torch.device | None = None) -> str:
    """Why the model of a checkpoint cannot be run; "" where it can, as far as one can tell.

    device: None is the one that `device_with_room` finds.
    """
    files = checkpoint.files
    if not files.path.is_dir():
        return "a file on its own does not say what model it is"
    if checkpoint.dialect is not None:
        return "the model is quantised already"
    if not any(name.endswith("ForCausalLM") for name in files.config.get("architectures") or ()):
        return "config.json names no causal language model among its architectures"
    if find_spec("transformers") is None:
        return "transformers is not installed: pip install 'blockscale[models]'"
    return _why_no_room(checkpoint, device or device_with_room(checkpoint))


def _why_no_room(checkpoint: Checkpoint, device: torch.device) -> str:
    """A model is loaded by the CPU, wherever it runs."""
    needed = _ROOM * _bytes_in_memory(checkpoint, device)
    for place in (device, _CPU):
        free = available_memory(place)
        if needed > free:
            return (
                f"the model needs {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} are free "
                f"on {place}"
            )
    return ""


def _bytes_in_memory(checkpoint: Checkpoint, device: torch.device) -> int:
    return sum(
        stored.nbytes // stored.dtype.itemsize * best_dtype(stored.dtype, device).itemsize
        for stored in checkpoint.tensors.values()
        if stored.dtype is not None
    )


def measure_checkpoint(
    folder: Path, tensors: Iterable[str], device: torch.device
) -> dict[str, Tensor]:
    """Importance of columns, by layer: of those that these tensors belong to, and of experts."""
    model = load_model(folder, device=device)
    layers = {name.removesuffix(".weight") for name in tensors}

    def wanted(name: str, module: nn.Module) -> bool:
        return name in layers or not isinstance(module, nn.Linear)

    return measure_importance(model, where=wanted)
