"""What a model has embeddings for: so many tokens, and so many positions, where those are learnt.

torch says of both that an index is out of range.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


@contextmanager
def embedded(model: Any, ids: Tensor, tokens: int) -> Iterator[None]:
    """Around a call of a model on ids, with `tokens` in all: says which of the two is at fault."""
    try:
        yield
    except IndexError as error:
        known = model.get_input_embeddings().num_embeddings
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if int(ids.max()) >= known:
            raise ValueError(
                f"{type(model).__name__} embeds {known} tokens, and the text has number "
                f"{int(ids.max())}: take the tokenizer of this model"
            ) from error
        if most is None or tokens <= most:
            raise
        raise ValueError(
            f"{type(model).__name__} has {most} positions, and {tokens} tokens are to be read "
            "together: take a shorter --window, fewer --max-tokens or a shorter prompt"
        ) from error
