"""What the config of a transformers model says of its packed layers.

`save_pretrained` writes the config that the model has by then. transformers is known by its
attributes, so nothing of it is imported.
"""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from blockscale.formats import Format
from blockscale.nn.labels import NAME, VERSION, label
from blockscale.nn.packed import PackedModule

logger = logging.getLogger(__name__)


def describe_in_config(model: Any) -> None:
    """Have `save_pretrained` of a transformers model say in config.json what its files hold: to be
    called whenever layers, or what they quantise inputs to, have changed.

    A model that transformers has quantised itself has a quantiser, which says so.
    """
    config: Any = getattr(model, "config", None)
    if not (hasattr(model, "save_pretrained") and hasattr(config, "to_dict")):
        return
    if getattr(model, "hf_quantizer", None) is not None:
        return
    described: dict[str, Any] = {"quant_method": NAME, "version": VERSION}
    x_format = common_x_format(model)
    if x_format is not None:
        described["x_format"] = label(x_format)
    config.quantization_config = described
    model._weight_conversions = []  # names and shapes in the files are those of the model


def common_x_format(model: nn.Module) -> Format | str | None:
    """The x_format of all packed layers of a model, as its config can say it; None and a warning
    where they differ."""
    found = {each.x_format for each in model.modules() if isinstance(each, PackedModule)}
    if len(found) > 1:
        logger.warning(
            "layers have different x_format (%s), and a saved config says one for all: it will "
            "say none",
            ", ".join(sorted(map(str, found))),
        )
        return None
    return found.pop() if found else None


def untie_in_config(model: Any) -> None:
    """Say of a transformers model that its head has a weight of its own: else the next
    `tie_weights`, at loading, would put the embedding's in its place."""
    config: Any = getattr(model, "config", None)
    configs: tuple[Any, ...] = (config, getattr(config, "text_config", None))
    for each in configs:
        if getattr(each, "tie_word_embeddings", False):
            each.tie_word_embeddings = False
