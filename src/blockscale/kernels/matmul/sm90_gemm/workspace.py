"""Memory in which the CTAs of a launch leave sums for each other: one per stream, kept."""

from __future__ import annotations

import torch
from torch import Tensor

_kept: dict[tuple[torch.device, int], tuple[Tensor, Tensor]] = {}


def workspace(
    device: torch.device, stream: int, floats: int, counters: int
) -> tuple[Tensor, Tensor]:
    """Room for so many sums, and counters that are zero between launches.

    Launches of one stream run one after the other, or wait for each other inside, so they share it.
    A CUDA graph may be replayed beside them: every launch in it has memory of the graph's own.
    """
    if torch.cuda.is_current_stream_capturing():
        return _make(device, floats, counters)
    found = _kept.get((device, stream))
    if found is None or len(found[0]) < floats or len(found[1]) < counters:
        if found is not None:
            floats, counters = max(floats, len(found[0])), max(counters, len(found[1]))
        found = _kept[device, stream] = _make(device, floats, counters)
    return found


def _make(device: torch.device, floats: int, counters: int) -> tuple[Tensor, Tensor]:
    sums = torch.empty(floats, dtype=torch.float32, device=device)
    return sums, torch.zeros(counters, dtype=torch.int32, device=device)
