"""Asking for the same bits whatever the number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_deterministic: ContextVar[bool] = ContextVar("blockscale_deterministic", default=False)


@contextmanager
def deterministic() -> Iterator[None]:
    """Inside, no product is left to a library whose bits depend on the number of threads."""
    token = _deterministic.set(True)
    try:
        yield
    finally:
        _deterministic.reset(token)


def is_deterministic() -> bool:
    return _deterministic.get()


ask_deterministic = _deterministic.get  # for C code, which asks at every call; not traceable
