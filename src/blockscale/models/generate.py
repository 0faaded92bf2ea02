"""Greedy decoding, token by token, with the time it takes.

A loop of our own rather than `model.generate`: it streams, depends on no generation settings in
the model's folder, and tells the reading of the prompt from the writing of the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockscale.models.limits import embedded

_UNFINISHED = "\ufffd"  # what a tokenizer gives for half of a character


@dataclass(frozen=True)
class Generation:
    """What was written, and how fast."""

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    prompt_seconds: float  # up to the first token
    seconds: float  # for the tokens after the first

    @property
    def tokens_per_second(self) -> float:
        """Of decoding; the prompt is not counted. NaN for a single token."""
        steps = len(self.tokens) - 1
        return steps / self.seconds if steps > 0 else float("nan")


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str,
    max_tokens: int = 128,
    *,
    chat: bool = True,
    on_text: Callable[[str], object] = lambda piece: None,
) -> Generation:
    """Answer a prompt with the likeliest token at each step.

    chat      put the prompt into the tokenizer's chat template, where it has one
    on_text   called with each new piece of text
    """
    ids = encode(tokenizer, prompt, chat=chat).to(model.device)
    stops = _stop_tokens(model, tokenizer)
    written: list[int] = []
    shown = ""
    begin = first = time.perf_counter()
    cache, step = None, ids
    while len(written) < max_tokens:
        with embedded(model, step, ids.shape[1] + len(written)):
            token, cache = next_token(model, step, cache)
        if not written:
            first = time.perf_counter()
        written.append(token)
        if token in stops:
            break
        text = tokenizer.decode(written, skip_special_tokens=True)
        if not text.endswith(_UNFINISHED):
            on_text(text[len(shown) :])
            shown = text
        step = torch.tensor([[token]], device=model.device)
    end = time.perf_counter()
    text = tokenizer.decode(written, skip_special_tokens=True)
    return Generation(text, tuple(written), ids.shape[1], first - begin, end - first)


@torch.inference_mode()
def next_token(model: Any, ids: Tensor, cache: Any) -> tuple[int, Any]:
    """The likeliest token after ids [1, t], and the cache with them in it."""
    out = model(input_ids=ids, past_key_values=cache, use_cache=True)
    return int(out.logits[0, -1].argmax()), out.past_key_values


def encode(tokenizer: Any, prompt: str, *, chat: bool) -> Tensor:
    """A prompt as tokens [1, t]."""
    if chat and tokenizer.chat_template:
        messages = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(prompt)["input_ids"]
    if not ids:
        raise ValueError("the prompt has no tokens: write something")
    return torch.tensor([ids])


def _stop_tokens(model: Any, tokenizer: Any) -> Collection[int]:
    """The tokens that end an answer, by the model and by its tokenizer, which may differ."""
    settings = getattr(model, "generation_config", None)
    listed = getattr(settings, "eos_token_id", None)
    found = set(listed) if isinstance(listed, (list, tuple)) else {listed}
    return {token for token in (*found, tokenizer.eos_token_id) if token is not None}
