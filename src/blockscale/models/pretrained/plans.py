"""Which style transformers gives to a module or a parameter of a model, and over which ranks.

Versions of transformers differ in how they say it, and nothing but this file knows how:

|                    | 5.21, 5.22                          | 5.23                                |
|--------------------|-------------------------------------|-------------------------------------|
| plans come from    | `resolve_parallel_plans(model, ..)` | `model._resolve_parallel_plans(..)` |
| names in them      | "layers.*.mlp"                      | "layers.3.mlp"                      |
| tokens exchanged   | style "ep_dispatch_experts"         | and `ep_implementation`             |
| experts summed     | "ep_router" and "moe_tp_experts"    | `ep_implementation="all_reduce"`    |
| Mega MoE           | style "megamoe_experts"             | `ep_implementation`                 |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

CUT_EXPERTS = "moe_tp_experts"
_WHOLE_EXPERTS, _MASKED_ROUTER = "ep_dispatch_experts", "ep_router"
_MEGA_STYLE, _MEGA_IMPLEMENTATION = "megamoe_experts", "deepgemm_megamoe"


class Rule(NamedTuple):
    """What a plan says of one module or parameter."""

    style: str  # a name in ALL_PARALLEL_STYLES
    mesh: Any  # of the ranks that share it
    options: Mapping[str, Any]  # what the style's install_forward wants besides


class Plans:
    """The plans by which a model is distributed: for tensor parallelism, and for experts."""

    def __init__(self, model: Any) -> None:
        config, meshes = model.config.distributed_config, model._mesh_manager
        self._has_patterns = not hasattr(model, "_resolve_parallel_plans")
        tp_plan, ep_plan = self._resolved(model, config)
        tp_mesh, styles = meshes.get_mesh("tp"), set(ep_plan.values())
        self._plans = [(tp_plan, tp_mesh)]
        self._dispatch: dict[str, Any] = {"tp_mesh": tp_mesh}
        if hasattr(config, "ep_implementation"):
            self._dispatch["ep_implementation"] = config.ep_implementation
        # transformers leaves every other plan for experts aside: all ranks have all of them.
        if _WHOLE_EXPERTS in styles:
            self._plans.append((ep_plan, meshes.get_mesh("ep")))
        elif {_MASKED_ROUTER, CUT_EXPERTS} <= styles or _MEGA_STYLE in styles:
            self._plans.append((ep_plan, tp_mesh))

    def of_module(self, path: str) -> Rule | None:
        """How the module takes part in the work of all ranks; None where each acts alone.

        What the plan for experts names is in no other.
        """
        for plan, mesh in self._plans:
            style = plan.get(self._spelled(path))
            if style is not None:
                options = self._dispatch if style == _WHOLE_EXPERTS else {}
                _refuse_mega_moe(path, style, options)
                return Rule(style, mesh, options)
        return None

    def of_parameter(self, path: str, name: str) -> Rule | None:
        """How ranks share a parameter of the module: as told, or as the module."""
        for plan, mesh in self._plans:
            style = plan.get(self._spelled(f"{path}.{name}"))
            if style is not None:
                return Rule(style, mesh, {})
        return self.of_module(path)

    def _resolved(self, model: Any, config: Any) -> tuple[dict[str, str], dict[str, str]]:
        if not self._has_patterns:
            tp_plan, ep_plan, _ = model._resolve_parallel_plans(config)
            return tp_plan, ep_plan
        from transformers.distributed.tensor_parallel import resolve_parallel_plans

        tp_plan, ep_plan = resolve_parallel_plans(model, config)
        return tp_plan, ep_plan

    def _spelled(self, name: str) -> str:
        """The name as plans have it."""
        if not self._has_patterns:
            return name
        from transformers.distributed.tensor_parallel import replace_layer_number_by_wildcard

        pattern: str = replace_layer_number_by_wildcard(name)
        return pattern


def _refuse_mega_moe(path: str, style: str, options: Mapping[str, Any]) -> None:
    if style == _MEGA_STYLE or options.get("ep_implementation") == _MEGA_IMPLEMENTATION:
        raise ValueError(
            f"{path}: DeepGEMM's Mega MoE multiplies by its own weights, not by packed ones: load "
            'with another `ep_implementation` (or `experts_implementation`), such as "auto"'
        )
