"""What a checkpoint that is being written says it holds: quantised, plain, and tied.

Dialects of the ecosystem say "all linear layers but these are quantised". A loader applies that to
the modules of a model, not to the tensors of a file, so a linear layer that stores nothing has to
be named too: a head that is tied to the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockscale.checkpoint.dialects import Contents
from blockscale.checkpoint.stored import module_of
from blockscale.formats import Format

# Heads that models of transformers tie to their embeddings, and the beginning of a name that only
# checkpoints of such models have.
_TIED_HEADS = {
    "lm_head": "",
    "lm_head.decoder": "lm_head.dense.",  # RoBERTa
    "cls.predictions.decoder": "cls.predictions.transform.",  # BERT
    "proj_out": "model.encoder.conv1.",  # Whisper
}


def contents_of(formats: Mapping[str, Format], plain: Mapping[str, tuple[int, ...]]) -> Contents:
    """From the formats of quantised tensors and the shapes of plain ones, by name."""
    kept = [module_of(n) for n, shape in plain.items() if n.endswith(".weight") and len(shape) == 2]
    static = frozenset(module_of(name) for name in plain if name.endswith(".input_scale"))
    return Contents(formats, [*kept, *_tied_heads([*formats, *plain])], static)


def _tied_heads(names: list[str]) -> list[str]:
    """Of a model with an embedding: the heads that it may have and that store no weight."""
    if not any("embed" in name or name.endswith("wte.weight") for name in names):
        return []
    return [
        head
        for head, sign in _TIED_HEADS.items()
        if f"{head}.weight" not in names and any(name.startswith(sign) for name in names)
    ]
