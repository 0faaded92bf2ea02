"""Text to judge a model on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def python_reference() -> str:
    """The language reference that every Python carries for `help()`: 460 kB of technical English.

    It is written by people, the same for everybody who has the same Python, and needs no network.
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def tokenize(tokenizer: Any, text: str | Path | None, tokens: int) -> Tensor:
    """The first `tokens` tokens of a file, a text, or by default `python_reference` -> [tokens]."""
    if isinstance(text, Path):
        text = _read(text)
    ids = tokenizer(python_reference() if text is None else text)["input_ids"][:tokens]
    if len(ids) < min(tokens, 2):
        raise ValueError(
            f"the text has {len(ids)} of the 2 tokens that predicting takes: use a longer one"
        )
    if len(ids) < tokens:
        raise ValueError(
            f"the text has only {len(ids)} tokens and {tokens} are wanted: use a longer one, or "
            f"--tokens {len(ids)}"
        )
    return torch.tensor(ids)


def _read(path: Path) -> str:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a text file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no text: byte {error.start} is not UTF-8 ({error.reason})"
        ) from None
