"""Models and tokenizers from folders in the form of Hugging Face, plain or quantised.

Nothing is fetched: a path that is not there is an error, not a name to look up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from blockscale.checkpoint import Checkpoint, load_into
from blockscale.models.precision import best_dtype

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def load_model(
    path: str | Path, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Any:
    """A causal language model of transformers, in evaluation mode.

    path    a folder with config.json and safetensors: as transformers saves it, or with quantised
            weights in any dialect that `load_into` reads
    dtype   of what is not quantised; None: the model's own, or float32 where the device would
            emulate that
    """
    transformers = import_transformers()
    folder = _model_folder(path)
    is_quantized = Checkpoint(folder).dialect is not None  # damaged files are found here, by name
    config = transformers.AutoConfig.from_pretrained(folder)
    device = torch.device(device)
    dtype = dtype or best_dtype(config.dtype or torch.float32, device)
    if is_quantized:
        model = _blank(transformers, config, dtype)
        load_into(model, folder)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.to(device).eval()


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer beside a model."""
    transformers = import_transformers()
    folder = _model_folder(path)
    if not any((folder / name).exists() for name in _TOKENIZER_FILES):
        raise ValueError(
            f"{folder} has no tokenizer, only a model: copy {_TOKENIZER_FILES[0]} and "
            "tokenizer_config.json into it"
        )
    return transformers.AutoTokenizer.from_pretrained(folder)


def import_transformers() -> Any:
    """On demand: the library itself does without."""
    try:
        import transformers
    except ImportError:
        raise ImportError(
            "whole models need transformers: pip install 'blockscale[models]'"
        ) from None
    return transformers


def _model_folder(path: str | Path) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    if not (folder / "config.json").exists():
        raise ValueError(f"{folder} is not a model: it has no config.json")
    return folder


def _blank(transformers: Any, config: Any, dtype: torch.dtype) -> Any:
    """With weights that are allocated and not written, so that they cost no memory yet.

    Not on the meta device, which would leave buffers that no checkpoint holds without values.
    """
    from transformers.initialization import no_init_weights

    # What the files say of quantisation is read by `load_into`; transformers might refuse it.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with no_init_weights():
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
