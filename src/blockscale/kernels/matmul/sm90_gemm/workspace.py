"""Memory in which the CTAs of a launch leave sums for each other: one per stream, kept."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.runtime.cuda import capture_id


class _Workspace(NamedTuple):
    sums: Tensor
    counters: Tensor
    capture: int | None  # the CUDA graph that has it for itself

    def serves(self, floats: int, counters: int, capture: int | None) -> bool:
        large = len(self.sums) >= floats and len(self.counters) >= counters
        return large and self.capture == capture


_kept: dict[tuple[torch.device, int], _Workspace] = {}
_captured: dict[tuple[torch.device, int], _Workspace] = {}


def workspace(
    device: torch.device, stream: int, floats: int, counters: int
) -> tuple[Tensor, Tensor]:
    """Room for so many sums, and counters that are zero between launches.

    Launches of one stream run one after the other, or wait for each other inside, so they share it.
    A CUDA graph may be replayed beside them, so it has one of its own, which its launches on one
    stream share: it is allocated and cleared once for all of them. It is let go when that stream
    captures another graph, like any memory that a captured program has freed.
    """
    capture, kept = None, _kept
    if torch.cuda.is_current_stream_capturing():
        capture, kept = capture_id(stream), _captured
        if capture is None:
            return _make(device, floats, counters)
    found = kept.get((device, stream))
    if found is None or not found.serves(floats, counters, capture):
        if found is not None and found.capture == capture:
            floats, counters = max(floats, len(found.sums)), max(counters, len(found.counters))
        made = _Workspace(*_make(device, floats, counters), capture)
        found = kept[device, stream] = made
    return found.sums, found.counters


def _make(device: torch.device, floats: int, counters: int) -> tuple[Tensor, Tensor]:
    sums = torch.empty(floats, dtype=torch.float32, device=device)
    return sums, torch.zeros(counters, dtype=torch.int32, device=device)
