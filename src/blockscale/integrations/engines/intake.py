"""From the stream of stored tensors to this rank's part of each weight.

An engine reads files and gives a model (name, tensor) pairs, in any order, from a disk or from a
trainer. What belongs to a packed layer is taken out of that stream here, under the names that the
file has, cut to this rank's part, and kept until the layer is built; the rest goes on to the model.
So no model of the engine has to know how a dialect stores codes and scales, or names experts.

A packed tensor that no layer wants is an error, and so is one that a layer wants and never gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from blockscale.checkpoint.stored import Ranges, Stored
from blockscale.tensor import QTensor

_SHOWN = 4  # names in a message


@dataclass(frozen=True)
class Cut:
    """This rank's part of a tensor: ranges of one axis, one after the other."""

    axis: int
    ranges: Ranges

    def of(self, tensor: Tensor) -> Tensor:
        """In memory of its own: the stream may reuse, or unmap, what it gave."""
        found = [tensor.narrow(self.axis, start, stop - start) for start, stop in self.ranges]
        return found[0].clone() if len(found) == 1 else torch.cat(found, self.axis)


class Piece:
    """One tensor of a checkpoint, or a part of it, on its way into a layer."""

    def __init__(self, stored: Stored, cut: Cut | None = None) -> None:
        self.stored, self.cut = stored, cut
        self._parts: dict[str, Tensor] = {}
        self._windows: Mapping[str, tuple[int, Ranges]] = {}
        if cut is not None:
            if stored.windows is None:
                raise ValueError(
                    f"{stored.name} can only be read whole, and ranks would share it: serve with "
                    "one rank, or convert the checkpoint with `blockscale quantize`"
                )
            self._windows = stored.windows(cut.axis, cut.ranges)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the part."""
        shape = list(self.stored.shape)
        if self.cut is not None:
            shape[self.cut.axis] = sum(stop - start for start, stop in self.cut.ranges)
        return tuple(shape)

    def take(self, role: str, tensor: Tensor) -> None:
        entry = self.stored.parts[role]
        if tuple(tensor.shape) != entry.shape or tensor.dtype != entry.dtype:
            raise ValueError(
                f"{entry.name} is {entry.dtype} {list(entry.shape)} in the checkpoint that the "
                f"model was built for, got {tensor.dtype} {list(tensor.shape)}: give weights of "
                "the same checkpoint, or start the server again with the other one"
            )
        window = self._windows.get(role)
        self._parts[role] = tensor.clone() if window is None else Cut(*window).of(tensor)

    @property
    def missing(self) -> list[str]:
        return [each.name for role, each in self.stored.parts.items() if role not in self._parts]

    @property
    def untouched(self) -> bool:
        return not self._parts

    def assemble(self) -> QTensor | Tensor:
        """And forget the parts."""
        if self.missing:
            raise ValueError(
                f"{self.stored.name}: nobody has given {', '.join(self.missing)}; a weight is "
                "given with all its parts"
            )
        parts, self._parts = self._parts, {}
        return self.stored.assemble(parts)


@dataclass
class Intake:
    """What the packed layers of one model want from a stream.

    stored      the tensors of the checkpoint
    elsewhere   whether a packed tensor is some other process's, such as a layer of another stage
    """

    stored: Iterable[Stored]
    elsewhere: Callable[[Stored], bool]
    _wanted: dict[str, list[tuple[Piece, str]]] = field(default_factory=dict)
    _ignored: set[str] = field(default_factory=set)
    _layers: list[Callable[[], None]] = field(default_factory=list)
    _loaded: bool = False
    _streaming: bool = False

    def want(self, stored: Stored, cut: Cut | None = None) -> Piece:
        piece = Piece(stored, cut)
        for role, entry in stored.parts.items():
            self._wanted.setdefault(entry.name, []).append((piece, role))
        return piece

    def ignore(self, stored: Stored) -> None:
        """It is known, and not needed here."""
        self._ignored |= {entry.name for entry in stored.parts.values()}

    def on_reload(self, rebuild: Callable[[], None]) -> None:
        self._layers.append(rebuild)

    def stream(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The pairs that are not for packed layers, as they were.

        Models are nested, and each level has its loader: what the outermost one let through is
        not looked at again.
        """
        if self._streaming:
            yield from weights
            return
        unread = self._unread()
        self._streaming = True
        try:
            for name, tensor in weights:
                if name in self._wanted:
                    for piece, role in self._wanted[name]:
                        piece.take(role, tensor)
                elif name in unread:
                    raise ValueError(
                        f"{name} is packed in the checkpoint, and no layer of the model reads it: "
                        "the engine has no quantised layer of that name. Keep it unquantised, or "
                        "see whether config.json belongs to these files"
                    )
                elif name not in self._ignored:
                    yield name, tensor
        finally:
            self._streaming = False
        self._finish()

    def _unread(self) -> set[str]:
        """Names of packed tensors that nobody has asked for."""
        return {
            entry.name
            for stored in self.stored
            if stored.format is not None and not self.elsewhere(stored)
            for entry in stored.parts.values()
            if entry.name not in self._wanted and entry.name not in self._ignored
        }

    def _finish(self) -> None:
        pieces = {id(p): p for users in self._wanted.values() for p, _ in users}.values()
        reloading, self._loaded = self._loaded, True
        partly = [p for p in pieces if p.missing and not (reloading and p.untouched)]
        if partly:
            names = [name for piece in partly for name in piece.missing]
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise ValueError(
                f"packed layers of the model wait for {', '.join(names[:_SHOWN])}{more}, which "
                "the weights that were given do not have: give whole layers, under the names of "
                "the checkpoint"
            )
        if reloading:
            for rebuild in self._layers:
                rebuild()
