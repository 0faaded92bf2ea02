"""Which calls may skip torch's dispatcher, whose ops cost as much as a small product."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from blockscale.runtime.torch_private import (
    find_questions,
    forward_level,
    transforms_take_gradients,
)

_PLAIN = (Tensor, torch.nn.Parameter)

# Everything below but for the compiler, gradients, subclasses and signs. Asked at every call, so
# found once; None where torch has no way to ask.
QUESTIONS = find_questions()


def can_skip_dispatcher(tensors: Iterable[Tensor | None]) -> bool:
    """Nobody needs to see the call as an op, and it has no gradient."""
    return _is_unwatched(tensors, grad=torch.is_grad_enabled())


def has_only_gradients(tensors: Iterable[Tensor | None]) -> bool:
    """Nobody but autograd needs to see the call."""
    return _is_unwatched(tensors, grad=False)


def has_gradients() -> bool:
    """Whether calls may have gradients at all: only then it takes a look at their tensors."""
    return torch.is_grad_enabled() or forward_level() != -1


def refuse_tangents(op: str, tensors: Iterable[Tensor]) -> None:
    """Rather than lose them: a derivative in forward mode would come out as zero."""
    if forward_level() == -1:
        return
    for tensor in tensors:
        if unpack_dual(tensor).tangent is not None:
            raise no_forward_mode(op)


def no_forward_mode(op: str) -> NotImplementedError:
    return NotImplementedError(
        f"{op} has no derivative in forward mode (jvp, make_dual): take it in reverse mode,"
        " by torch.autograd.grad or torch.func.vjp"
    )


def is_differentiated_by_transforms() -> bool:
    """Whether torch.func takes gradients of the call, which its levels have to see as a Function.
    A compiler traces the op."""
    return not torch.compiler.is_compiling() and transforms_take_gradients()


def needs_gradient(tensors: Iterable[Tensor | None]) -> bool:
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def _is_unwatched(tensors: Iterable[Tensor | None], *, grad: bool) -> bool:
    """No compiler, mode, transform or subclass, nor a gradient if these count. Nor a tensor that
    stands in memory with the other sign, which the dispatcher resolves."""
    if QUESTIONS is None or torch.compiler.is_compiling():
        return False
    for ask, arguments, answer in QUESTIONS:
        if ask(*arguments) is not answer:
            return False
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN or (grad and tensor.requires_grad) or tensor.is_neg():
            return False
    return True
