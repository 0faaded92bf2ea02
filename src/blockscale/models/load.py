"""Models and tokenizers from folders in the form of Hugging Face, plain or quantised.

Nothing is fetched: a path that is not there is an error, not a name to look up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from blockscale.checkpoint import Checkpoint
from blockscale.formats import Format
from blockscale.models.precision import best_dtype
from blockscale.nn.packed import known_x_format

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def load_model(
    path: str | Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    *,
    x_format: Format | str | None = None,
) -> Any:
    """A causal language model of transformers, in evaluation mode.

    path      a folder with config.json and safetensors: as transformers saves it, or with quantised
              weights in any dialect that `load` reads
    dtype     of what is not quantised; None: the model's own, or float32 where the device would
              emulate that
    x_format  what quantised layers quantise their inputs to, as in `matmul`; None: as the folder
              says, which mostly is not at all. A model that is not quantised has no use for one
    """
    import_transformers()
    folder = _model_folder(path)
    is_quantized = Checkpoint(folder).dialect is not None  # damaged files are found here, by name
    if known_x_format(x_format) is not None and not is_quantized:
        raise ValueError(
            f"x_format={x_format}: the weights of {folder} are not quantised, so its products take "
            "x as it is: quantise them first"
        )
    config = load_config(folder)
    device = torch.device(device)
    dtype = dtype or best_dtype(config.dtype or torch.float32, device)
    from blockscale.models.pretrained.load import load_causal_lm, load_packed

    if is_quantized:
        model = load_packed(folder, config, dtype, x_format)
    else:
        model = load_causal_lm(folder, config, dtype)
    return model.to(device).eval()


def load_config(folder: Path) -> Any:
    """What transformers makes of config.json; values that it cannot take are named."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        return import_transformers().AutoConfig.from_pretrained(folder)
    except StrictDataclassError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder / 'config.json'}: {reason}") from None


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer beside a model."""
    transformers = import_transformers()
    folder = _model_folder(path)
    if not any((folder / name).exists() for name in _TOKENIZER_FILES):
        raise ValueError(
            f"{folder} has no tokenizer, only a model: copy {_TOKENIZER_FILES[0]} and "
            "tokenizer_config.json into it"
        )
    config = load_config(folder)
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, config=config)
    except (ValueError, KeyError, TypeError) as error:  # whatever a damaged file leads to
        raise ValueError(
            f"the tokenizer of {folder} cannot be read: {type(error).__name__}: {error}"
        ) from error


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
        if folder.exists():
            raise NotADirectoryError(f"{folder} is a file: give the folder of the model")
        raise FileNotFoundError(f"{folder}: no such folder")
    if not (folder / "config.json").exists():
        raise ValueError(f"{folder} is not a model: it has no config.json")
    return folder
