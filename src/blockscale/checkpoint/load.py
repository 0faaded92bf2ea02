"""`load`: a checkpoint as a dictionary of tensors."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from blockscale.checkpoint.checkpoint import Checkpoint
from blockscale.tensor import QTensor


def load(path: str | Path) -> dict[str, QTensor | Tensor]:
    """All tensors of a checkpoint, by name, in the convention of this library.

    path: a folder with config.json and safetensors, or one .safetensors file. Weights written by
    compressed-tensors, ModelOpt, gpt-oss, bitsandbytes or `save` come as QTensors under the name
    of the weight, such as "model.layers.0.mlp.up_proj.weight".
    """
    checkpoint = Checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.tensors}
