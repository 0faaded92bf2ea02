"""By how much a decoder's rotary positions turn heads, for many tokens at a time.

transformers computes cosines and sines anew for each token, in a dozen calls of torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TOKENS = 256  # of a table
# Kinds of rotary positions whose frequencies depend on nothing but the config. Others change them
# as a sequence grows.
_FIXED = ("default", "linear", "llama3", "yarn")


class Rotation:
    """Of one decoder, whose rotary positions every call passes: they may have become others."""

    def __init__(self) -> None:
        self._first = 0
        self._table = torch.empty(0)  # [tokens, 2, head_dim], of tokens from `_first` on
        self._frequencies: Any = None  # that the table is of
        self._scaling: Any = None

    def at(self, position: int, rotary: Any) -> Tensor:  # [2, head_dim] float32: cosines, sines
        if getattr(rotary, "rope_type", None) not in _FIXED:
            return _computed(rotary, position, 1)[0]
        place = position - self._first
        if not 0 <= place < len(self._table) or not self._is_of(rotary):
            self._frequencies, self._scaling = rotary.inv_freq, rotary.attention_scaling
            self._first, place = position, 0
            self._table = _computed(rotary, position, _TOKENS)
        return self._table[place]

    def _is_of(self, rotary: Any) -> bool:
        scaling: float = rotary.attention_scaling
        return rotary.inv_freq is self._frequencies and scaling == self._scaling


def _computed(rotary: Any, first: int, tokens: int) -> Tensor:
    # In float32, whatever the model's dtype: so are the layers.
    positions = torch.arange(first, first + tokens)[None]
    cosines, sines = rotary(torch.empty(0), position_ids=positions)
    return torch.stack((cosines[0], sines[0]), dim=1)
