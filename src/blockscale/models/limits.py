"""What a model has embeddings for: so many tokens, and so many positions, where those are learnt.

torch says of both that an index is out of range, or that sizes do not match.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

_OF_SIZES = ("out of bounds", "must match the size")  # what a RuntimeError says then


@contextmanager
def embedded(model: Any, ids: Tensor, length: int) -> Iterator[None]:
    """Around a call of a model on ids, with `length` tokens in all: says which is at fault."""
    try:
        yield
    except (IndexError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(each in str(error) for each in _OF_SIZES):
            raise
        known = model.get_input_embeddings().num_embeddings
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if int(ids.max()) >= known:
            raise ValueError(
                f"{type(model).__name__} embeds {known} tokens, and the text has number "
                f"{int(ids.max())}: take the tokenizer of this model"
            ) from error
        if most is None or length <= most:
            raise
        raise ValueError(
            f"{type(model).__name__} has {most} positions, and {length} tokens are to be read "
            "together: take a shorter --window, fewer --max-tokens or a shorter prompt"
        ) from error
