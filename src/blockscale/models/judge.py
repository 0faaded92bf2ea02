"""Models side by side: what they weigh and how well they predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from blockscale.models.decoded import decode_
from blockscale.models.likelihood import Score, compare
from blockscale.models.size import bits_per_weight, model_bytes


@dataclass(frozen=True)
class Quality:
    """One model. Each figure has its standard error beside it; NaN: there was one window only.

    ratio and divergence are relative to a reference, and None where there is none.
    """

    name: str
    bits_per_weight: float
    bytes: int
    tokens: int
    perplexity: float
    perplexity_error: float
    ratio: float | None = None
    ratio_error: float | None = None
    divergence: float | None = None  # in nats per token
    divergence_error: float | None = None


def judge(
    models: Mapping[str, Any],
    ids: Tensor,
    *,
    reference: str | None = None,
    length: int = 512,
    stride: int | None = None,
    on_tokens: Callable[[int], object] = lambda count: None,
) -> list[Quality]:
    """The quality of each model on the tokens ids [t], as in `compare`.

    Quantised linear layers decode their weights for each batch from then on; see `decode_`.
    """
    sizes = {name: (bits_per_weight(model), model_bytes(model)) for name, model in models.items()}
    for model in models.values():
        decode_(model)
    scores = compare(
        models, ids, reference=reference, length=length, stride=stride, on_tokens=on_tokens
    )
    return [
        Quality(
            name=name,
            bits_per_weight=sizes[name][0],
            bytes=sizes[name][1],
            tokens=score.tokens,
            perplexity=score.perplexity,
            perplexity_error=score.perplexity_error,
            **_relative(score, scores[reference] if reference else None),
        )
        for name, score in scores.items()
    ]


def _relative(score: Score, reference: Score | None) -> dict[str, float]:
    if reference is None:
        return {}
    return {
        "ratio": score.ratio(reference),
        "ratio_error": score.ratio_error(reference),
        "divergence": score.divergence,
        "divergence_error": score.divergence_error,
    }
