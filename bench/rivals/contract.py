"""What a rival is: something that multiplies by a weight that it keeps in its own form.

A rival is a frozen record, so that one file can enter several (one per format, one per accuracy).
`prepare` puts a weight into its form; that happens once in a model's life and is not timed. What
comes back copies itself to fill a ring with distinct memory, decodes itself so that the product can
be checked against what the bytes mean, and binds an x, so that only the product is timed and no
conversion of x that a program of this rival's would not do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module

import torch
from torch import Tensor

from bench.timing import Call


class Prepared(ABC):
    """A weight [n, k] in a rival's form."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What a product has to read of it."""

    @abstractmethod
    def copy(self) -> Prepared:
        """The same in other memory."""

    @abstractmethod
    def decoded(self) -> Tensor:  # float32 [n, k]
        """The weight that these bytes stand for."""

    @abstractmethod
    def bind(self, x: Tensor) -> Call:  # [m, k]
        """A call that gives x @ w.T, [m, n]."""

    def kernel(self, x: Tensor) -> str:
        """What runs for this x, where the rival says so."""
        return ""


class Rival(ABC):
    """
    name      as the tables have it
    role      "ours", "rival", or "ceiling" for a plain read of memory, which is not checked
    dtype     of x, of the result, and of a decoded weight on its way into the product
    x_block   how many values of a row of x are rounded to int8 with one scale; 0: all of them;
              None: x is taken as it is
    only_rows the m it takes part at; empty: all of them
    """

    name: str
    role: str = "rival"
    dtype: torch.dtype = torch.bfloat16
    x_block: int | None = None
    only_rows: tuple[int, ...] = ()

    def missing(self) -> str:
        """Why it cannot take part at all; "" if it can."""
        return ""

    def compilations(
        self, shapes: Sequence[tuple[int, int]], rows: Sequence[int]
    ) -> list[Callable[[], object]]:
        """What it compiles for these problems: done before anything is timed, all at once."""
        return []

    @abstractmethod
    def prepare(self, w: Tensor) -> Prepared:  # bfloat16 [n, k]
        """An error here is reported, and keeps the rival out of this shape."""


def import_failure(*modules: str) -> str:
    """Why these cannot be imported; "" if they can."""
    for module in modules:
        try:
            import_module(module)
        except Exception as error:  # noqa: BLE001 a broken library may fail in any way
            return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return ""
