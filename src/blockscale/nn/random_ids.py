"""Running a language model on token ids drawn at random.

How large the inputs of a layer are, column by column, is mostly the model's own doing: random ids
show it nearly as well as text, and nobody has to have any. Of SmolLM2-135M, ids as few as these
give the squared error under the moments of four times as many within 0.5 percent.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

import torch
from torch import nn

from blockscale.nn.progress import track

WINDOWS, LENGTH = 4, 512


def why_not_random_ids(model: nn.Module) -> str:
    """Why a model cannot be run on token ids alone; "" where it can."""
    kind = type(model).__name__
    if not hasattr(model, "get_input_embeddings") or not hasattr(model, "config"):
        return f"{kind} is no language model of transformers"
    if getattr(model.config, "is_encoder_decoder", False):
        return f"{kind} has an encoder and a decoder"
    if "input_ids" not in signature(model.forward).parameters:
        return f"{kind} takes no token ids"
    try:
        embeddings = model.get_input_embeddings()  # type: ignore[operator]
    except NotImplementedError:
        embeddings = None
    return "" if isinstance(embeddings, nn.Embedding) else f"{kind} embeds no token ids"


def run_on_random_ids(
    model: Any, needed: Iterable[nn.Module] = (), progress: bool | None = None
) -> None:
    """A few windows, one at a time, always the same. Heads are left out unless they are needed."""
    embeddings = model.get_input_embeddings()
    body = getattr(model, "base_model", model)
    if not {id(module) for module in needed} <= {id(module) for module in body.modules()}:
        body = model
    length = min(LENGTH, getattr(model.config, "max_position_embeddings", None) or LENGTH)
    ids = torch.randint(
        min(embeddings.num_embeddings, getattr(model.config, "vocab_size", None) or 2**62),
        (WINDOWS, length),
        generator=torch.Generator().manual_seed(0),
    )
    options = {"use_cache": False} if "use_cache" in signature(body.forward).parameters else {}
    device = embeddings.weight.device
    try:
        for window in track(list(ids), lambda each: f"measuring inputs on {device}", progress):
            body(input_ids=window[None].to(device), **options)
    except Exception as error:
        raise RuntimeError(
            f"{type(model).__name__} does not run on token ids alone ({error}): measure its "
            "importance with a function that runs it on batches of yours, or pass importance=None"
        ) from error
