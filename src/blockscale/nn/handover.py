"""Bytes that were packed on one CUDA stream and are used on others.

A kernel is over when its stream has come so far, not when the call that launched it returns. Two
things follow for weights that the first forward packs, on whichever stream that happens to run:

- Another stream has to wait for the packing before it reads them: `Handover.use_here`.
- PyTorch gives the memory of a tensor that nobody holds to the next tensor of the stream on which
  it was allocated. It must know of each other stream that still reads it: `Tensor.record_stream`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from blockscale.runtime.cuda import current_stream


class Handover:
    """The moment on the current stream of a device from which on some tensors may be read."""

    def __init__(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        self._tensors, self._device = tuple(tensors), device
        stream = torch.cuda.current_stream(device)
        self._packed = torch.cuda.Event()
        self._packed.record(stream)
        self._streams = {stream.cuda_stream}  # that may read them

    def use_here(self) -> None:
        """What follows on the current stream may read the tensors. Any thread may say so.

        A graph that is being captured cannot wait for what is not part of it, and need not:
        `torch.cuda.graph` has waited for all that ran before.
        """
        handle = current_stream(self._device)  # asked at every call: a handle comes cheaper
        if handle in self._streams:
            return
        keep_until_read(self._tensors, self._device)
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(self._device).wait_event(self._packed)
            self._streams.add(handle)

    def wait_on_host(self) -> None:
        self._packed.synchronize()


def keep_until_read(tensors: Iterable[Tensor], device: torch.device) -> None:
    """The current stream reads them, whichever stream they were allocated on."""
    stream = torch.cuda.current_stream(device)
    for tensor in tensors:
        tensor.record_stream(stream)


def refuse_capture(device: torch.device) -> None:
    """What a graph packs, it would pack again at every replay, from bytes that are gone."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "the weights of a module are packed at its first use, which a CUDA graph cannot hold: "
            "call module.prepare(), or the module once, before capturing"
        )
