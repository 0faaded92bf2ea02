"""Whether modules still hold what a native call has the addresses of.

Asking a model for all of its weights by name takes about a millisecond for every token. Where
torch keeps them, in the dicts of its modules, looking takes a sixth of that: a watch notes each
place once, with what was in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import is_
from typing import Any

from torch import Tensor, nn

from blockscale.nn.packed import PackedModule


class Watch:
    """Of modules and of what they hold now; `unchanged` says later whether they still do."""

    def __init__(self) -> None:
        # Place number i is entry _names[i] of _dicts[i]: apart, so that built-in functions can go
        # over the thousand places of a model.
        self._dicts: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._held: list[Any] = []
        # A parameter may get other memory and stay the same object. What it had is kept, so that
        # nothing else can be at its address.
        self._parameters: list[Tensor] = []
        self._memory: list[Tensor] = []
        self._addresses: list[int] = []
        self._hooks: list[dict[int, Any]] = []
        self._counts: list[int] = []

    def unchanged(self) -> bool:
        found = map(dict.get, self._dicts, self._names)
        return (
            all(map(is_, found, self._held))
            and [*map(Tensor.data_ptr, self._parameters)] == self._addresses
            and [*map(len, self._hooks)] == self._counts
        )

    def _note(self, place: dict[str, Any], name: str) -> Any:
        held = place.get(name)
        self._dicts.append(place)
        self._names.append(name)
        self._held.append(held)
        return held

    def children(self, module: nn.Module, names: Iterable[str]) -> Iterator[Any]:
        """Those that there are; one that is missing may come later."""
        for name in names:
            found = self._note(module._modules, name)
            if found is not None:
                yield found

    def hooks(self, module: nn.Module) -> None:
        """How many its forward has."""
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            self._hooks.append(hooks)
            self._counts.append(len(hooks))

    def parameter(self, module: nn.Module, name: str) -> None:
        """One that may be missing, or None, and may come later."""
        self._note(module.__dict__, name)
        found = self._note(module._parameters, name)
        if found is not None:
            self._parameters.append(found)
            self._memory.append(found.detach())
            self._addresses.append(found.data_ptr())

    def packed(self, module: PackedModule) -> None:
        """The weights and their x_format. A packed module that changes gets new dicts."""
        for name in ("_buffers", "_meanings", "x_format"):
            self._note(module.__dict__, name)
        for name in module._buffers:
            self._note(module._buffers, name)
