"""Which calls may skip torch's dispatcher, whose custom ops cost as much as a small product."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

import torch
from torch import Tensor
from torch.autograd import forward_ad

_PLAIN = (Tensor, torch.nn.Parameter)

# Asked at every call, so found once.
_is_tracing = torch._C._is_tracing
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transform = torch._C._functorch.peek_interpreter_stack
_forward_level = attrgetter("_current_level")  # -1 where no forward gradients are taken


# Everything below but for the compiler, gradients and subclasses: callable, arguments, answer.
QUESTIONS: tuple[tuple[Callable[..., object], tuple[object, ...], object], ...] = (
    (_is_tracing, (), False),
    (_dispatch_modes, (), 0),
    (_function_modes, (), 0),
    (_transform, (), None),
    (_forward_level, (forward_ad,), -1),
)


def is_unobserved(tensors: Iterable[Tensor | None]) -> bool:
    """Nobody needs to see the call as an op: no compiler, gradient, mode, transform or subclass."""
    if torch.compiler.is_compiling() or _is_tracing():
        return False
    if _dispatch_modes() or _function_modes() or _transform() is not None:
        return False
    if _forward_level(forward_ad) != -1:
        return False
    grad = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in _PLAIN or (grad and tensor.requires_grad)):
            return False
    return True
