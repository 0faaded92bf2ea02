"""What is compiled, and said, before the first request.

The first call of a CUDA kernel compiles it, which takes seconds and is not possible while a graph
is captured: kernels are compiled for the batch sizes that vLLM will capture, when the last layer
has its weights. Compiled kernels are kept on the disk, where other ranks, and the next start, find
them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import torch

from blockscale.nn import Experts
from blockscale.nn.packed import PackedModule
from blockscale.nn.progress import track
from blockscale.tensor import explain

logger = logging.getLogger("vllm.blockscale")


Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # format and shape of each weight


class Startup:
    """Of one model, in one process."""

    def __init__(
        self, dialect: str, rows: Sequence[int], dtype: torch.dtype, is_speaker: bool
    ) -> None:
        self.dialect, self.rows, self.dtype = dialect, sorted(set(rows)), dtype
        self.is_speaker = is_speaker  # one rank is enough to hear
        self._waiting: set[str] = set()
        self._formats: Counter[str] = Counter()
        self._kinds: dict[tuple[type, int, Shapes], PackedModule] = {}

    def expect(self, name: str) -> None:
        self._waiting.add(name)

    def ready(self, name: str, layer: PackedModule, experts_per_token: int = 1) -> None:
        """The last one says what all will run on."""
        for weight in layer.qtensors().values():
            self._formats[str(weight.format)] += 1
        kind = tuple((str(q.format), q.shape) for q in layer.qtensors().values())
        self._kinds.setdefault((type(layer), experts_per_token, kind), layer)
        self._waiting.discard(name)
        if not self._waiting:
            self._begin()

    def _begin(self) -> None:
        counts = ", ".join(f"{count} {name}" for name, count in self._formats.items())
        say = logger.info if self.is_speaker else logger.debug
        say("blockscale runs %s weights of %s, kept packed", counts, self.dialect)
        self._warm()
        for layer in self._kinds.values():
            say("%s", self._explained(layer))

    def _explained(self, layer: PackedModule) -> str:
        """Of one token, which is what most batches of a server are nearest to."""
        weight = next(iter(layer.qtensors().values()))
        x = torch.zeros(1, weight.shape[-1], dtype=self.dtype, device=weight.device)
        if isinstance(layer, Experts):
            sizes = torch.zeros(layer.num_experts, dtype=torch.int64, device=x.device)
            sizes[0] = 1
            return str(explain(x, layer.gate, layer.up, group_sizes=sizes))
        return str(explain(x, weight))

    def _warm(self) -> None:
        """Run every kind of layer at every batch size, where running compiles."""
        runs = [
            (layer, m, kind[1])
            for kind, layer in self._kinds.items()
            if _device(layer).type == "cuda"
            for m in self.rows
        ]
        for layer, m, top in track(runs, lambda run: f"{run[1]} rows", None):
            _run(layer, m, top, self.dtype)
        if runs:
            torch.cuda.synchronize()


def _device(layer: PackedModule) -> torch.device:
    return next(iter(layer.qtensors().values())).device


@torch.inference_mode()
def _run(layer: PackedModule, m: int, top: int, dtype: torch.dtype) -> None:
    """As a batch of m tokens would, each of which goes to so many experts."""
    weight = next(iter(layer.qtensors().values()))
    x = torch.zeros(m, weight.shape[-1], dtype=dtype, device=weight.device)
    if isinstance(layer, Experts):
        every = torch.arange(m * top, device=x.device).view(m, top) % layer.num_experts
        layer(x, every, torch.ones_like(every, dtype=dtype))
    else:
        layer(x)
