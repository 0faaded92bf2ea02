"""How large the inputs of each weight are: mean squares by column, found while a model runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from blockscale.nn.fused import FusedExperts, read_fused
from blockscale.nn.routing import experts_of_stacked
from blockscale.numerics import parse_activation

# Of the mean of a layer's columns. A column that these inputs left at zero may be alive in others.
_LEAST = 1e-6


class Moments:
    """Second moments of what reaches each weight, by the weight's name."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # float64 [experts or 1, k]
        self._rows: dict[str, Tensor] = {}  # float64 [experts or 1]

    def add(self, name: str, x: Tensor, expert: int = 0, experts: int = 1) -> None:
        """Rows x [..., k] that were multiplied with a weight, or with one expert of several."""
        rows = x.detach().reshape(-1, x.shape[-1])
        if name not in self._sums:
            self._sums[name] = rows.new_zeros(experts, rows.shape[-1], dtype=torch.float64)
            self._rows[name] = rows.new_zeros(experts, dtype=torch.float64)
        self._sums[name][expert] += rows.float().square().sum(0)
        self._rows[name][expert] += len(rows)

    def means(self) -> dict[str, Tensor]:
        """float32 [k], or [experts, k] where experts differ; zeros for one that no row reached."""
        found = {}
        for name, sums in self._sums.items():
            mean = sums / self._rows[name].clamp(min=1)[:, None]
            mean = mean.maximum(_LEAST * mean.mean(-1, keepdim=True)).float()
            found[name] = mean[0] if len(mean) == 1 else mean
        return found


@contextmanager
def watching(modules: Mapping[str, nn.Module]) -> Iterator[Moments]:
    """The moments of linear layers and fused experts, by name, for as long as the block runs."""
    moments = Moments()
    with _hooks() as hooks:
        for name, module in modules.items():
            if isinstance(module, nn.Linear):
                hooks.append(module.register_forward_pre_hook(_linear_hook(moments, name)))
            else:
                hook = _experts_hook(moments, name)
                hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        yield moments


@contextmanager
def _hooks() -> Iterator[list[Any]]:
    hooks: list[Any] = []
    try:
        yield hooks
    finally:
        for hook in hooks:
            hook.remove()


def _linear_hook(moments: Moments, name: str) -> Any:
    return lambda module, inputs: moments.add(name, inputs[0])


def _experts_hook(moments: Moments, name: str) -> Any:
    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        x, *routing = (*inputs, *named.values())  # as `Experts.forward` takes them
        fused = read_fused(module)
        if isinstance(fused, str):
            raise TypeError(fused)
        x, experts = x.reshape(-1, x.shape[-1]), len(fused.down)
        index = experts_of_stacked(x, experts)[:, None] if fused.stacked else routing[0]
        moments.add(f"{name}.gate_up_proj", x)
        for expert, rows in _routed(index, experts):
            between = _between(fused, expert, x[rows])
            moments.add(f"{name}.down_proj", between, expert, experts)

    return hook


def _routed(index: Tensor, experts: int) -> Iterable[tuple[int, Tensor]]:
    """Each expert that has any rows, and which; numbers that no expert has stand for nobody."""
    index = index.reshape(-1, index.shape[-1])
    for expert in index.unique().tolist():
        if 0 <= expert < experts:
            yield expert, (index == expert).any(-1)


def _between(fused: FusedExperts, expert: int, x: Tensor) -> Tensor:
    """What the second product of an expert takes. Fused experts show it to nobody."""
    gate, up = (
        linear(x, weight[expert], None if bias is None else bias[expert])
        for weight, bias in ((fused.gate, fused.gate_bias), (fused.up, fused.up_bias))
    )
    return parse_activation(fused.activation)(gate, up)
