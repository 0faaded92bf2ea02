"""What a packed weight is, said under its own name.

A packed weight is stored in parts: `weight_codes`, `weight_scale` and so on. Its own name, where a
plain model has the numbers, holds the name of its format as bytes. That says what the parts mean,
wherever they are stored. And it stops a loader that takes them for a plain model: a row of bytes
has not the shape of a weight, which every loader checks, while one that only misses a weight may
warn and go on with random numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.formats import CATALOGUE, Format
from blockscale.formats import format as find_format

NAME, VERSION = "blockscale", 2  # of the dialect in which modules of `nn` store themselves
# Fused experts of transformers, whose place `Experts` takes, have these two weights.
_FUSED = {"gate": "gate_up_proj", "down": "down_proj"}


def label(format: Format | str) -> str:
    """The name of a catalogued format, else its spec: both are found by `bs.format`. A name, such
    as the "int8" of activations, is itself."""
    if isinstance(format, str):
        return format
    return format.name if CATALOGUE.get(format.name) == format else format.spec


def label_name(weight: str) -> str:
    """Where a plain model has the numbers: "a.weight" for itself, "a.gate_up_proj" for "a.gate"."""
    module, dot, leaf = weight.rpartition(".")
    return f"{module}{dot}{_FUSED.get(leaf, leaf)}"


def write_label(format: Format, device: torch.device | None = None) -> Tensor:
    return torch.tensor(list(label(format).encode()), dtype=torch.uint8, device=device)


def read_label(stored: Tensor) -> Format:
    if stored.dtype != torch.uint8 or stored.dim() != 1:
        raise ValueError(
            f"expected the name of a format as bytes, got {stored.dtype} {list(stored.shape)}"
        )
    return find_format(bytes(stored.tolist()).decode("ascii"))
