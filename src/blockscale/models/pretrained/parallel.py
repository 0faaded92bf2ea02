"""Models that transformers spreads over ranks: how packed layers act in them.

transformers distributes a model after it is built and before it is loaded. For every parameter of
its plans (`tp_plan`, `ep_plan`) it puts a DTensor without bytes, whose placement says how ranks
share it; and it replaces the `forward` of the module around it by one that cuts x and adds up the
results. A packed layer that took the place of such a module alone would lose both, and the model
would go on with a part of the sum. So the layer is told which part of its weights it holds
(`placements`), and gets a `forward` from the same style of the same plan.

Experts are the exception: their style looks for DTensors among the parameters to know that a sum
is needed, and packed bytes are none. `_PackedExperts` sums wherever ranks share the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers.distributed.parallel_utils import _AllReduceForward
from transformers.distributed.tensor_parallel import (
    ALL_PARALLEL_STYLES,
    MoeExpertsParallel,
    replace_layer_number_by_wildcard,
    resolve_parallel_plans,
)

from blockscale.nn import Experts, Linear

_EXPERTS, _DISPATCH, _MLA = "moe_tp_experts", "ep_dispatch_experts", "mla_kv_a_proj"


class Ranks:
    """The plans by which a model is distributed."""

    def __init__(self, model: Any) -> None:
        tp_plan, ep_plan = resolve_parallel_plans(model, model.config.distributed_config)
        self._tp_mesh = model._mesh_manager.get_mesh("tp")
        dispatches = _DISPATCH in ep_plan.values()
        ep_mesh = model._mesh_manager.get_mesh("ep") if dispatches else self._tp_mesh
        self._plans = [(tp_plan, self._tp_mesh), (ep_plan, ep_mesh)]
        self._text_config = model.config.get_text_config()

    def distribute(self, path: str, layer: nn.Module) -> None:
        """Give a layer without bytes the DTensors that its plan wants, which say how it is cut."""
        for name in list(layer._parameters):
            for plan, mesh in self._plans:
                style = plan.get(_pattern(f"{path}.{name}")) or plan.get(_pattern(path))
                if style is not None:
                    ALL_PARALLEL_STYLES[style].shard_param(layer, name, mesh)

    def install(self, path: str, twin: Linear | Experts) -> None:
        """Make a packed layer, with its part of the weights, act as the layer that it replaces."""
        styled: Any = twin
        styled._hf_quantized_needs_local_tp = twin.is_sharded
        for plan, mesh in self._plans:
            style = plan.get(_pattern(path))
            if style == _MLA:
                styled.config = self._text_config
            if style == _EXPERTS:
                _PackedExperts(summed=twin.is_sharded).install_forward(twin, mesh)
            elif style == _DISPATCH:
                ALL_PARALLEL_STYLES[style].install_forward(twin, mesh, tp_mesh=self._tp_mesh)
            elif style is not None:
                ALL_PARALLEL_STYLES[style].install_forward(twin, mesh)


def _pattern(name: str) -> str:
    """As plans have it: "layers.*.mlp" for "layers.3.mlp"."""
    pattern: str = replace_layer_number_by_wildcard(name)
    return pattern


class _PackedExperts(MoeExpertsParallel):
    def __init__(self, *, summed: bool) -> None:
        super().__init__()
        self.summed = summed

    @contextmanager
    def context_around_forward(self, module: nn.Module, mesh: Any) -> Iterator[None]:
        """A bias that all ranks have counts once in their sum."""
        bias = module._parameters["down_bias"]
        everywhere = bias is not None and not _is_cut(bias)
        hidden = self.summed and everywhere and mesh.get_local_rank() > 0
        with super().context_around_forward(module, mesh):
            if hidden:
                module._parameters["down_bias"] = None
            try:
                yield
            finally:
                if hidden:
                    module._parameters["down_bias"] = bias

    def transform_output_post_forward(
        self, module: nn.Module, output: Tensor, mesh: Any, source: Any = None
    ) -> Tensor:
        if not self.summed:
            return output
        summed: Tensor = _AllReduceForward.apply(output, mesh.get_group())
        return summed


def _is_cut(parameter: Tensor) -> bool:
    placements: Any = getattr(parameter, "placements", ())
    return any(not each.is_replicate() for each in placements)
