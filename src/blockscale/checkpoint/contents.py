"""What a checkpoint that is being written says it holds: quantised, plain, and tied.

Dialects of the ecosystem say "all linear layers but these are quantised". A loader applies that to
the modules of a model, not to the tensors of a file, so a linear layer that stores nothing has to
be named too: a head that is tied to the embedding. So have the linear layers that stand for fused
experts, where these are plain.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from blockscale.checkpoint.dialects import Contents, Description, WritableDialect
from blockscale.checkpoint.stored import module_of
from blockscale.formats import Format

logger = logging.getLogger(__name__)

# Heads that models of transformers tie to their embeddings, and the beginning of a name that only
# checkpoints of such models have.
_TIED_HEADS = {
    "lm_head": "",
    "lm_head.decoder": "lm_head.dense.",  # RoBERTa
    "cls.predictions.decoder": "cls.predictions.transform.",  # BERT
    "proj_out": "model.encoder.conv1.",  # Whisper
}
_TIED = "tie_word_embeddings"
_SHARED = "shared.weight"  # the embedding of an encoder and its decoder: T5, BART
# Fused experts by the end of their names, and the linear layers that each of them has in engines.
_EXPERTS = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "gate_proj": ("gate_proj",),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
    "input_linear": ("gate_proj", "up_proj"),  # GraniteMoE
    "output_linear": ("down_proj",),
}


def describe(
    writer: WritableDialect,
    formats: Mapping[str, Format],
    plain: Mapping[str, tuple[int, ...]],
    x_format: Format | str | None,
) -> Description:
    """From the formats of quantised tensors and the shapes of plain ones, by name. Not every
    dialect can say an x_format; it says so where one is lost."""
    description = writer.describe(_contents(formats, plain, x_format))
    if x_format is not None and "x_format" not in description.config:
        logger.warning(
            "the %s dialect does not say x_format=%s: name it again where the weights are loaded, "
            "or write the dialect 'blockscale'",
            writer.NAME,
            x_format,
        )
    return description


def _contents(
    formats: Mapping[str, Format],
    plain: Mapping[str, tuple[int, ...]],
    x_format: Format | str | None,
) -> Contents:
    kept = [module for name, shape in plain.items() for module in _modules_of(name, shape)]
    kept += _tied_heads([*formats, *plain])
    static = frozenset(module_of(name) for name in plain if name.endswith(".input_scale"))
    return Contents(formats, list(dict.fromkeys(kept)), static, x_format)


def _modules_of(name: str, shape: tuple[int, ...]) -> list[str]:
    """Those that a loader could expect to be quantised, as a plain tensor of theirs is not."""
    if len(shape) == 2 and name.endswith(".weight"):
        return [module_of(name)]
    layer, _, part = name.removesuffix(".weight").rpartition(".")
    if len(shape) != 3 or part not in _EXPERTS:
        return []
    experts = layer if layer.endswith("experts") else f"{layer}.experts"
    # vLLM takes the layers of the first expert for those of all
    return [experts, *(f"{experts}.0.{each}" for each in _EXPERTS[part])]


def _tied_heads(names: list[str]) -> list[str]:
    """Of a model with an embedding: the heads that it may have and that store no weight."""
    if not any("embed" in name or name.endswith(("wte.weight", _SHARED)) for name in names):
        return []
    return [
        head
        for head, sign in _TIED_HEADS.items()
        if f"{head}.weight" not in names and any(name.startswith(sign) for name in names)
    ]


def untied(config: Mapping[str, Any], quantized: Iterable[str]) -> dict[str, Any]:
    """The config of a model, which says of a quantised head that it has a weight of its own.

    Else a loader would put the embedding in its place. Many models are tied unless theirs says no.
    """
    heads = {f"{head}.weight" for head in _TIED_HEADS}
    if not any(name in heads or name.endswith(".lm_head.weight") for name in quantized):
        return dict(config)
    changed = {**config, _TIED: False}
    if isinstance(text := config.get("text_config"), Mapping):
        changed["text_config"] = {**text, _TIED: False}
    return changed
