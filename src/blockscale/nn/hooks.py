"""What others have put around the calls of a layer, and how it goes with the layer when it is
swapped.

torch keeps hooks in dicts of the module. accelerate, which places models on devices, replaces
`forward` of the instance by a wrapper that it knows how to put around another module. Whatever else
replaces `forward` may compute anything.
"""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any

from torch import nn

_CALL_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_is_full_backward_hook",
)
_STATE_HOOKS = (
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def why_not_carried(module: nn.Module) -> str | None:
    """What is around a layer and cannot go with it."""
    held: Any = module
    kind, forward = type(module).__name__, module.__dict__.get("forward")
    if _is_accelerates(forward):
        forward = held._old_forward
    # accelerate leaves the method itself there when it takes its wrapper away
    if forward is not None and forward != MethodType(type(module).forward, module):
        return f"its forward was replaced, and may not compute what {kind} does"
    if any(getattr(module, name) for name in _STATE_HOOKS):
        return f"it has hooks on its state dict, which is not that of {kind} once it is packed"
    return None


def carry_hooks(module: nn.Module, twin: nn.Module) -> None:
    """To the layer that takes the place of `module`."""
    for name in _CALL_HOOKS:  # the dicts themselves: the handles that remove hooks refer to them
        setattr(twin, name, getattr(module, name))
    if _is_accelerates(module.__dict__.get("forward")):
        from accelerate.hooks import add_hook_to_module

        placed: Any = module
        add_hook_to_module(twin, placed._hf_hook)


def _is_accelerates(forward: Any) -> bool:
    of = getattr(forward.func, "__module__", None) if isinstance(forward, partial) else None
    return of == "accelerate.hooks"
