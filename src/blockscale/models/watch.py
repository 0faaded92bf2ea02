"""Whether modules still hold what a native call was made of.

Asking a model for all of its weights by name takes about a millisecond for every token. Where
torch keeps them, in the dicts of its modules, looking takes a sixth of that: a watch notes each
place once, with what was in it. A number that a call was given, and a `forward` set on a module,
are in such places too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import is_
from typing import Any, NamedTuple

from torch import Tensor, nn

from blockscale.nn.packed import PackedModule


class _Places(NamedTuple):
    """Number i is entry names[i] of dicts[i]: apart, so that built-in functions can go over the
    thousand places of a model."""

    dicts: list[dict[str, Any]]
    names: list[str]
    held: list[Any]

    def note(self, place: dict[str, Any], name: str) -> Any:
        held = place.get(name)
        self.dicts.append(place)
        self.names.append(name)
        self.held.append(held)
        return held

    def found(self) -> Iterator[Any]:
        return map(dict.get, self.dicts, self.names)


class Watch:
    """Of modules and of what they hold now; `unchanged` says later whether they still do."""

    def __init__(self) -> None:
        self._tensors = _Places([], [], [])  # and dicts of them, whose == is not for conditions
        self._values = _Places([], [], [])  # lists of which are compared faster, by one ==
        # A parameter may get other memory and stay the same object. What it had is kept, so that
        # nothing else can be at its address.
        self._parameters: list[Tensor] = []
        self._memory: list[Tensor] = []
        self._addresses: list[int] = []
        self._counted: list[dict[Any, Any]] = []
        self._counts: list[int] = []

    def unchanged(self) -> bool:
        return (
            [*self._values.found()] == self._values.held
            and all(map(is_, self._tensors.found(), self._tensors.held))
            and [*map(Tensor.data_ptr, self._parameters)] == self._addresses
            and [*map(len, self._counted)] == self._counts
        )

    def _count(self, entries: dict[Any, Any]) -> None:
        self._counted.append(entries)
        self._counts.append(len(entries))

    def children(self, module: nn.Module, names: Iterable[str]) -> list[Any]:
        """Those that there are; one that is missing may come later."""
        found = [self._values.note(module._modules, name) for name in names]
        return [each for each in found if each is not None]

    def every_child(self, module: nn.Module) -> list[Any]:
        """And how many there are."""
        self._count(module._modules)
        return self.children(module, module._modules)

    def fields(self, owner: Any, names: Iterable[str]) -> None:
        """Numbers and the like, that may be missing and may come later."""
        for name in names:
            self._values.note(owner.__dict__, name)

    def forward(self, module: nn.Module) -> None:
        """Whether it has one that is not its class's, and how many hooks."""
        self.fields(module, ["forward"])
        self._count(module._forward_hooks)
        self._count(module._forward_pre_hooks)

    def parameter(self, module: nn.Module, name: str) -> None:
        """One that may be missing, or None, and may come later."""
        found = self._tensors.note(module._parameters, name)
        if found is None:
            self._tensors.note(module.__dict__, name)  # torch allows none beside a parameter
        else:
            self._parameters.append(found)
            self._memory.append(found.detach())
            self._addresses.append(found.data_ptr())

    def packed(self, module: PackedModule) -> None:
        """The weights and their x_format. A packed module that changes gets new dicts."""
        self.fields(module, ["x_format"])
        for name in ("_buffers", "_meanings"):
            self._tensors.note(module.__dict__, name)
        for name in module._buffers:
            self._tensors.note(module._buffers, name)
