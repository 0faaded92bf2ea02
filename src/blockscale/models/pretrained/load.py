"""A folder with packed weights in, a model of transformers out.

transformers builds the model, renames what older checkpoints call otherwise, ties embeddings and
fills buffers that no file holds; only the packed layers are ours. It finds quantisers by name in a
table of the process, which is given back as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    register_quantization_config,
    register_quantizer,
)

from blockscale.formats import Format
from blockscale.models.pretrained.config import BlockscaleConfig
from blockscale.models.pretrained.quantizer import BlockscaleQuantizer
from blockscale.nn.labels import NAME

_MOST_NAMES = 4


def load_causal_lm(folder: Path, config: Any, dtype: torch.dtype) -> Any:
    """A model whose weights are all in the folder; transformers would invent what is missing."""
    model, found = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, output_loading_info=True
    )
    missing = sorted(found["missing_keys"])
    if missing:
        more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
        raise ValueError(
            f"{folder}: the checkpoint has no {', '.join(missing[:_MOST_NAMES])}{more}, which "
            f"{type(model).__name__} needs"
        )
    return model


def load_packed(
    folder: Path, config: Any, dtype: torch.dtype, x_format: Format | str | None
) -> Any:
    """The same, of a folder in any dialect that is read here.

    The files themselves say how they are quantised, so `config` need only name our quantiser: no
    other library is asked what it makes of their description.
    """
    described = getattr(config, "quantization_config", None) or {}
    ours = described if described.get("quant_method") == NAME else BlockscaleConfig().to_dict()
    if x_format is not None:
        ours = {**ours, "x_format": BlockscaleConfig(x_format=x_format).to_dict()["x_format"]}
    config.quantization_config = ours
    with _known_to_transformers():
        return load_causal_lm(folder, config, dtype)


@contextmanager
def _known_to_transformers() -> Iterator[None]:
    if NAME in AUTO_QUANTIZER_MAPPING:
        yield
        return
    register_quantizer(NAME)(BlockscaleQuantizer)
    register_quantization_config(NAME)(BlockscaleConfig)
    try:
        yield
    finally:
        del AUTO_QUANTIZER_MAPPING[NAME], AUTO_QUANTIZATION_CONFIG_MAPPING[NAME]
