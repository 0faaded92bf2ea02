"""Models that transformers spreads over ranks: how packed layers act in them.

transformers distributes a model after it is built and before it is loaded. For every parameter of
its plans (`tp_plan`, `ep_plan`) it puts a DTensor without bytes, whose placement says how ranks
share it; and it replaces the `forward` of the module around it by one that cuts x and adds up the
results. A packed layer that took the place of such a module alone would lose both, and the model
would go on with a part of the sum. So the layer is told which part of its weights it holds
(`placements`), and gets a `forward` from the same style of the same plan (`plans`).

Experts whose features are cut are the exception. Their style may look for DTensors among the
parameters to know that a sum is needed, and packed bytes are none; and it counts a bias of all
ranks once for each. `_PackedExperts` sums wherever ranks share the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers.distributed.parallel_utils import _AllReduceForward
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, MoeExpertsParallel

from blockscale.models.pretrained.plans import CUT_EXPERTS, Plans, Rule
from blockscale.nn import Experts, Linear

_MLA = "mla_kv_a_proj"


class Ranks:
    """How the layers of one model follow its plans."""

    def __init__(self, model: Any) -> None:
        self._plans = Plans(model)
        self._text_config = model.config.get_text_config()

    def distribute(self, path: str, layer: nn.Module) -> None:
        """Give a layer without bytes the DTensors that its plan wants, which say how it is cut."""
        for name in list(layer._parameters):
            rule = self._plans.of_parameter(path, name)
            if rule is not None:
                ALL_PARALLEL_STYLES[rule.style].shard_param(layer, name, rule.mesh)

    def check(self, path: str, *, is_sharded: bool) -> Rule | None:
        """The plan's rule for a layer; an error where a packed one could not follow it."""
        rule = self._plans.of_module(path)
        if rule is None and is_sharded:  # nobody would cut x, nor add up the results
            raise ValueError(
                f"{path}: the plan cuts its parameters and has no style for the layer: name "
                f'"{path}" in the plan too'
            )
        return rule

    def install(self, path: str, twin: Linear | Experts) -> None:
        """Make a packed layer, with its part of the weights, act as the layer that it replaces."""
        styled: Any = twin
        styled._hf_quantized_needs_local_tp = twin.is_sharded
        rule = self.check(path, is_sharded=twin.is_sharded)
        if rule is None:
            return
        if rule.style == _MLA:
            styled.config = self._text_config
        style = ALL_PARALLEL_STYLES[rule.style]
        if rule.style == CUT_EXPERTS:
            style = _PackedExperts(summed=twin.is_sharded)
        style.install_forward(twin, rule.mesh, **rule.options)


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
        self, module: nn.Module, output: Tensor, mesh: Any, **_: Any
    ) -> Tensor:
        """`_` is what transformers knows of the output before 5.23, from parameters."""
        if not self.summed:
            return output
        summed: Tensor = _AllReduceForward.apply(output, mesh.get_group())
        return summed


def _is_cut(parameter: Tensor) -> bool:
    placements: Any = getattr(parameter, "placements", ())
    return any(not each.is_replicate() for each in placements)
