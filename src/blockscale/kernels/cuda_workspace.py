"""Memory in which the blocks of a launch leave sums for each other: one per stream, kept."""

from __future__ import annotations

import torch
from torch import Tensor

_Workspace = tuple[Tensor, Tensor]
_kept: dict[tuple[torch.device, int], _Workspace] = {}
_outgrown: list[_Workspace] = []  # CUDA graphs may have been captured with them


def workspace(
    device: torch.device, stream: int, floats: int, counters: int
) -> tuple[Tensor, Tensor]:
    """Room for so many sums, and counters that are zero between launches.

    Launches of one stream run one after the other, or wait for each other inside, so they share it.
    What a CUDA graph is captured with belongs to the graph, and is not kept.
    """
    found = _kept.get((device, stream))
    if found is not None and len(found[0]) >= floats and len(found[1]) >= counters:
        return found
    if found is not None:  # at least doubled, so that the outgrown ones are never more than it
        floats, counters = max(floats, 2 * len(found[0])), max(counters, 2 * len(found[1]))
    made = (
        torch.empty(floats, dtype=torch.float32, device=device),
        torch.zeros(counters, dtype=torch.int32, device=device),
    )
    if not torch.cuda.is_current_stream_capturing():
        _kept[device, stream] = made
        _outgrown.extend([] if found is None else [found])
    return made
