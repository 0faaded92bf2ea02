"""How fast models write, side by side, on a machine that may have other work meanwhile.

A machine's speed drifts while it is measured, by more than models differ. So the models take turns:
each round times all of them, in an order that changes, and only times of one round are compared. A
difference counts where every round has the same sign; for models that are equally fast, n rounds
agree by chance once in 2^(n-1), which is 1 in 32 for six.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from blockscale.models.generate import next_token

ROUNDS = 6


@dataclass(frozen=True)
class Speed:
    """Of one model: tokens a second, round by round."""

    samples: tuple[float, ...]

    @property
    def tokens_per_second(self) -> float:
        return median(self.samples)

    def ratio(self, reference: Speed) -> float:
        """How many times as fast: the median over rounds."""
        return median(self._ratios(reference))

    def differs(self, reference: Speed) -> bool:
        """Whether every round says so; else the difference is within the noise of this machine."""
        ratios = self._ratios(reference)
        return min(ratios) > 1 or max(ratios) < 1

    def _ratios(self, reference: Speed) -> list[float]:
        pairs = zip(self.samples, reference.samples, strict=True)
        return [mine / theirs for mine, theirs in pairs]


def race(
    models: Mapping[str, Any], prompt: Tensor, *, tokens: int = 16, rounds: int = ROUNDS
) -> dict[str, Speed]:
    """The speed of each model at decoding, after a prompt [1, t] that is not counted.

    The first pass of each, which packs weights and wakes threads, is not counted either.
    """
    for model in models.values():
        decode_rate(model, prompt, tokens)
    return take_turns(models, lambda model: decode_rate(model, prompt, tokens), rounds)


def take_turns(
    models: Mapping[str, Any], measure: Callable[[Any], float], rounds: int
) -> dict[str, Speed]:
    """Each model measured once a round. A round begins with another model than the one before."""
    names = list(models)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            samples[name].append(measure(models[name]))
    return {name: Speed(tuple(taken)) for name, taken in samples.items()}


def decode_rate(model: Any, prompt: Tensor, tokens: int) -> float:
    """Tokens a second, whatever they are: an answer that ends early is gone on with."""
    token, cache = next_token(model, prompt.to(model.device), None)
    begin = time.perf_counter()
    for _ in range(tokens):
        token, cache = next_token(model, torch.tensor([[token]], device=model.device), cache)
    return tokens / (time.perf_counter() - begin)
