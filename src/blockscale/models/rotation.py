"""By how much a decoder's rotary positions turn heads, for many tokens at a time.

transformers computes cosines and sines anew for each token, in a dozen calls of torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

_TOKENS = 256  # of a table
# Kinds of rotary positions whose frequencies depend on nothing but the config. Others change them
# as a sequence grows.
_FIXED = ("default", "linear", "llama3", "yarn")


class _Table(NamedTuple):
    first: int  # token
    turns: Tensor  # [tokens, 2, head_dim]
    frequencies: Any  # that it was made of
    scaling: float

    def has(self, position: int, tokens: int, rotary: Any) -> bool:
        made_of_these = (
            rotary.inv_freq is self.frequencies and rotary.attention_scaling == self.scaling
        )
        first = position - self.first
        return made_of_these and 0 <= first <= len(self.turns) - tokens


class Rotation:
    """Of one decoder, whose rotary positions every call passes: they may have become others."""

    def __init__(self) -> None:
        self._table: _Table | None = None  # replaced as a whole: threads share it

    def at(self, position: int, tokens: int, rotary: Any) -> Tensor:
        """[tokens, 2, head_dim] float32: cosines, sines."""
        if getattr(rotary, "rope_type", None) not in _FIXED:
            return _computed(rotary, position, tokens)
        table = self._table
        if table is None or not table.has(position, tokens, rotary):
            turns = _computed(rotary, position, max(tokens, _TOKENS))
            table = _Table(position, turns, rotary.inv_freq, rotary.attention_scaling)
            self._table = table
        return table.turns.narrow(0, position - table.first, tokens)


def _computed(rotary: Any, first: int, tokens: int) -> Tensor:
    # In float32, whatever the model's dtype: so are the layers.
    positions = torch.arange(first, first + tokens, device="cpu")[None]
    float32 = torch.empty(0, dtype=torch.float32, device="cpu")
    cosines, sines = rotary(float32, position_ids=positions)
    return torch.stack((cosines[0], sines[0]), dim=1)
