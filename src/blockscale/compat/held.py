"""QTensors of plain tensors, made once.

The k-bit functions are given plain tensors at each call. To make a QTensor of them takes longer
than a small product, and a new one knows no launch plans, so it is kept for the next call: until
one of the tensors it was made from is written to, placed elsewhere or let go.

- What is kept is made of aliases, which share the bytes of the caller's tensors and do not keep
  those alive. Weak references drop it with the first of them.
- Each tensor of codes is in one kept QTensor at most. Where experts had to be copied into one
  tensor, the copies therefore never take more memory than the experts themselves.
- torch does not count what is written through `.data`. An alias shows it, a copy does not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from blockscale.tensor import QTensor

_Stamp = tuple[int, int]


class _Entry(NamedTuple):
    keys: list[int]  # identities of the tensors of codes
    seen: tuple[tuple[weakref.ref[Tensor], _Stamp], ...]
    facts: Hashable
    weight: QTensor


class HeldWeights:
    """What `find` has made, by the identities of the tensors of codes."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len({id(entry.weight) for entry in self._entries.values()})

    def find(
        self,
        codes: tuple[Tensor, ...],
        others: tuple[Tensor, ...],
        facts: Hashable,
        make: Callable[[list[Tensor]], QTensor],
    ) -> QTensor:
        """make([*codes, *others]), or what it gave for the same tensors, as they still are."""
        sources = (*codes, *others)
        if torch.compiler.is_compiling() or not codes:
            return make(list(sources))
        entry = self._entries.get(id(codes[0]))
        if entry is not None and _serves(entry, sources, facts):
            return entry.weight
        if any(type(source) not in (Tensor, Parameter) for source in sources):
            return make(list(sources))  # a fake tensor has no address to be known by
        # Under inference_mode what is made could never take part in training.
        with torch.inference_mode(mode=False), torch.no_grad():
            weight = make([source.detach() for source in sources])
        if not any(source.is_inference() for source in sources) or _is_alias(weight, sources):
            self._keep(codes, sources, facts, weight)
        return weight

    def _keep(
        self,
        codes: tuple[Tensor, ...],
        sources: tuple[Tensor, ...],
        facts: Hashable,
        weight: QTensor,
    ) -> None:
        keys = [id(part) for part in codes]
        for key in keys:
            if (stale := self._entries.get(key)) is not None:
                self._drop(stale.keys, stale.weight)

        def drop(_: object) -> None:
            self._drop(keys, weight)

        seen = tuple([(weakref.ref(source, drop), _stamp(source)) for source in sources])
        entry = _Entry(keys, seen, facts, weight)
        self._entries.update(dict.fromkeys(keys, entry))

    def _drop(self, keys: list[int], weight: QTensor) -> None:
        for key in keys:  # which another tensor may have by now
            entry = self._entries.get(key)
            if entry is not None and entry.weight is weight:
                self._entries.pop(key, None)


def _stamp(source: Tensor) -> _Stamp:
    """What changes when a tensor is placed elsewhere or written to.

    Tensors of inference mode do not count what is written to them: an alias shows it all the same.
    """
    return source.data_ptr(), 0 if source.is_inference() else source._version


def _serves(entry: _Entry, sources: tuple[Tensor, ...], facts: Hashable) -> bool:
    if entry.facts != facts or len(entry.seen) != len(sources):
        return False
    for (ref, stamp), source in zip(entry.seen, sources, strict=True):
        if ref() is not source or _stamp(source) != stamp:
            return False
    return True


def _is_alias(weight: QTensor, sources: tuple[Tensor, ...]) -> bool:
    """Whether the weight reads the bytes of the tensors themselves, and no copy."""
    addresses = {source.data_ptr() for source in sources}
    parts = (weight.codes, weight.scale, weight.codebook)
    return all(part is None or part.data_ptr() in addresses for part in parts)
