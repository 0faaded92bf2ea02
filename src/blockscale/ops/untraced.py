"""Functions that a compiler does not step into where it does not compile what calls them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from blockscale.runtime.torch_private import skip_tracing

_Function = TypeVar("_Function", bound=Callable[..., Any])


def untraced(function: _Function) -> _Function:
    """Nor what it calls."""
    if skip_tracing is None:
        return cast(_Function, _disabled(function))
    skip_tracing(function.__code__)
    return function


def _disabled(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compiler.disable, which would import the compiler, and costs a microsecond at every
    call. Where nobody has imported the compiler nobody traces."""
    disabled: list[Callable[..., Any]] = []

    def call(*arguments: Any) -> Any:
        if not disabled and "torch._dynamo" in sys.modules:
            disabled.append(torch.compiler.disable(function))
        return (disabled[0] if disabled else function)(*arguments)

    return call
