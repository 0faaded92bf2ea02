"""How well models predict a text, and how far their predictions are from a reference's.

A text is read in windows of equal length. Each window scores the tokens that no window before it
has scored, so every token but the first is scored once; a stride below the length gives each more
context, for more work. All models read a window before the next one is read, and the reference's
predictions are there to be compared with without being stored.

Standard errors are over stretches of tokens, a window long, not over single tokens: neighbours are
hard or easy together, and would be counted as more evidence than they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.models.limits import embedded

_LOGITS = 1 << 26  # numbers that a batch may have: 256 MB in float32
_ROWS = 256  # whose distributions are compared together


class Window(NamedTuple):
    """Tokens start .. start + length - 1 are read; the last `scored` of their successors count."""

    start: int
    scored: int


@dataclass(frozen=True)
class Score:
    """Of one model on one text."""

    losses: Tensor  # [tokens] -ln p of each token
    divergences: Tensor | None  # [tokens] KL(reference || model), where there is a reference
    window: int

    @property
    def tokens(self) -> int:
        return len(self.losses)

    @property
    def perplexity(self) -> float:
        return self.losses.mean().exp().item()

    @property
    def perplexity_error(self) -> float:
        return self.perplexity * standard_error(self.losses, self.window)

    @property
    def divergence(self) -> float:
        """In nats per token."""
        return nan if self.divergences is None else self.divergences.mean().item()

    @property
    def divergence_error(self) -> float:
        return nan if self.divergences is None else standard_error(self.divergences, self.window)

    def ratio(self, reference: Score) -> float:
        """Of perplexities."""
        return (self.losses - reference.losses).mean().exp().item()

    def ratio_error(self, reference: Score) -> float:
        """From the differences token by token: what is hard for both models cancels."""
        difference = standard_error(self.losses - reference.losses, self.window)
        return self.ratio(reference) * difference


def windows(tokens: int, length: int, stride: int) -> list[Window]:
    """Windows that score tokens 1 .. tokens - 1 once each; the last one ends with the text."""
    if tokens < 2:
        raise ValueError(f"a text of {tokens} tokens predicts nothing: at least 2 are needed")
    if length < 1 or not 1 <= stride <= length:
        raise ValueError(f"windows of {length} tokens cannot move by {stride}")
    length = min(length, tokens - 1)
    found = [Window(0, length)]
    done = length  # the last token that is scored
    while done < tokens - 1:
        scored = min(stride, tokens - 1 - done)
        done += scored
        found.append(Window(done - length, scored))
    return found


@torch.inference_mode()
def compare(
    models: Mapping[str, Any],
    ids: Tensor,
    *,
    reference: str | None = None,
    length: int = 512,
    stride: int | None = None,
    on_tokens: Callable[[int], object] = lambda count: None,
) -> dict[str, Score]:
    """Score models on the tokens ids [t].

    reference   the name of the model whose predictions the others are compared with
    length      of the windows
    stride      by which they move; by default their length
    on_tokens   called with the number of tokens that all models have scored since the last call
    """
    steps = windows(len(ids), length, stride or length)
    length = min(length, len(ids) - 1)
    names = sorted(models, key=lambda name: name != reference)  # the reference goes first
    losses: dict[str, list[Tensor]] = {name: [] for name in names}
    divergences: dict[str, list[Tensor]] = {name: [] for name in names}
    vocabulary = max(model.config.get_text_config().vocab_size for model in models.values())
    for batch in _batches(steps, max(1, _LOGITS // (length * vocabulary))):
        context = torch.stack([ids[w.start : w.start + length] for w in batch])
        target = torch.cat([ids[w.start + length - w.scored + 1 :][: w.scored] for w in batch])
        expected = None
        for name in names:
            logits = _scored_logits(models[name], context, batch)
            if name == reference:
                expected = logits
            for loss, divergence in _judge(logits, target.to(logits.device), expected):
                losses[name].append(loss)
                divergences[name].append(divergence)
        on_tokens(len(target))
    return {
        name: Score(
            torch.cat(losses[name]),
            torch.cat(divergences[name]) if reference is not None else None,
            length,
        )
        for name in models
    }


def standard_error(values: Tensor, stretch: int) -> float:
    """Of the mean of values, where those within a stretch may depend on each other."""
    sums = torch.stack([part.sum() for part in (values - values.mean()).split(stretch)])
    count = len(sums)
    return sqrt(count / (count - 1) * sums.square().sum()) / len(values) if count > 1 else nan


def _batches(steps: list[Window], size: int) -> Iterator[list[Window]]:
    return (steps[start : start + size] for start in range(0, len(steps), size))


def _scored_logits(model: Any, context: Tensor, batch: list[Window]) -> Tensor:
    """[scored tokens of all windows, vocabulary]"""
    with embedded(model, context, context.shape[1]):
        logits = model(input_ids=context.to(model.device), use_cache=False).logits
    return torch.cat([each[-w.scored :] for each, w in zip(logits, batch, strict=True)])


def _judge(
    logits: Tensor, target: Tensor, expected: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Losses and divergences, some rows at a time, as float64 on the CPU."""
    for start in range(0, len(target), _ROWS):
        rows = slice(start, start + _ROWS)
        log_q = logits[rows].float().log_softmax(-1)
        loss = -log_q.gather(-1, target[rows, None])[:, 0]
        divergence = torch.zeros_like(loss)
        if expected is not None:
            log_p = expected[rows].to(log_q.device).float().log_softmax(-1)
            divergence = (log_p.exp() * (log_p - log_q)).sum(-1)
        yield loss.double().cpu(), divergence.double().cpu()
