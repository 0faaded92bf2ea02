"""What the placements of a layer's parameters mean for the packed weights that take its place.

A model that transformers has distributed has DTensors for parameters, and a placement on a mesh
says how ranks share each. Weights here are [n, k] and [e, n, k], with gate and up apart; parameters
of experts have the two fused, and in some models k before n.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from blockscale.formats import Format
from blockscale.nn.fused import is_concatenated, is_transposed
from blockscale.nn.sharding import Sharding

Shardings = dict[str, Sharding]


def ranks_of(model: Any) -> Any:
    """The plans of a model that is spread over ranks; None of any other."""
    if getattr(model, "_device_mesh", None) is None:
        return None
    if getattr(model, "_mesh_manager", None) is None:
        raise RuntimeError(
            "packed weights on several ranks need a transformers with `transformers.distributed` "
            "(5.21 or later): update it, or load the model on one rank"
        )
    from blockscale.models.pretrained.parallel import Ranks  # older transformers cannot import it

    return Ranks(model)


def layer_shardings(path: str, layer: nn.Module, formats: Mapping[str, Format]) -> Shardings:
    """How ranks share the weights of a layer, by role; an error where that would cut a block.

    formats   by role: "weight", or "gate", "up" and "down"
    """
    linear = isinstance(layer, nn.Linear)
    found = _linear_shardings(path, layer) if linear else _expert_shardings(path, layer)
    for role, sharding in found.items():
        _check_cut(path, sharding, formats[role])
    return found


def _linear_shardings(path: str, layer: nn.Module) -> Shardings:
    """Of "weight"; empty where every rank has all of it."""
    found = _placement(path, layer._parameters["weight"])
    if found is None:
        return {}
    mesh, axis, factor, shape = found
    if factor != 1:
        raise ValueError(
            f"{path}: ranks share {factor} ranges of its rows, which packed layers cannot: leave "
            "it out of the tp_plan, or out of the quantised layers"
        )
    return {"weight": Sharding(mesh, axis, shape)}


def _expert_shardings(path: str, layer: nn.Module) -> Shardings:
    """Of "gate", "up" and "down"; empty where every rank has all of them.

    Ranks share whole experts, or the intermediate features: rows of gate and up, columns of down.
    """
    gate_up = _placement(f"{path}.gate_up_proj", layer._parameters["gate_up_proj"])
    down = _placement(f"{path}.down_proj", layer._parameters["down_proj"])
    if gate_up is None and down is None:
        return {}
    if gate_up is None or down is None:
        raise ValueError(f"{path}: ranks must share gate_up_proj and down_proj, or neither")
    mesh, gate_axis, factor, (experts, rows, hidden) = _turned(gate_up, is_transposed(layer))
    _, down_axis, _, down_shape = _turned(down, is_transposed(layer))
    halves = 2 if is_concatenated(layer) else 1  # gates and ups in turn are cut as one
    whole_experts = gate_axis == 0 and down_axis == 0
    if not whole_experts and (gate_axis, down_axis, factor) != (1, 2, halves):
        raise ValueError(
            f"{path}: packed experts are shared whole, or by their intermediate features; the plan "
            f"cuts axis {gate_axis} of gate_up_proj into {factor} ranges and axis {down_axis} of "
            "down_proj"
        )
    inner = Sharding(mesh, gate_axis, (experts, rows // 2, hidden))
    return {"gate": inner, "up": inner, "down": Sharding(mesh, down_axis, down_shape)}


def _check_cut(path: str, sharding: Sharding, format: Format) -> None:
    """Blocks run along k, and none of them may be cut."""
    try:
        sharding.local_range(format)
    except ValueError as error:
        raise ValueError(
            f'{path}: {error}; or keep the layer, as in format={{"{path}": None, "*": ...}}'
        ) from None


def largest_over_ranks(sharding: Sharding, scale: Tensor) -> Tensor:
    """The tensor scale of the whole: it grows with the amax, so it is the largest of all parts'."""
    if sharding.axis < scale.dim():  # experts, each with its own
        return scale
    sent = scale.to(sharding.mesh.device_type)
    dist.all_reduce(sent, dist.ReduceOp.MAX, group=sharding.mesh.get_group())
    return sent.to(scale.device)


def _placement(path: str, parameter: Tensor | None) -> tuple[Any, int, int, tuple[int, ...]] | None:
    """The mesh, the axis, how many ranges of it each rank has, and the whole shape."""
    placements: Any = getattr(parameter, "placements", None)
    if parameter is None or placements is None or all(p.is_replicate() for p in placements):
        return None
    mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
    if len(placements) != 1 or mesh.mesh_dim_names not in (("tp",), ("ep",)):
        raise ValueError(
            f"{path} is cut over the mesh {mesh}: weights are quantised while they are loaded on "
            "one rank, or with tensor or expert parallelism. For FSDP, save the packed model first "
            "and load that"
        )
    (placement,) = placements
    factor = getattr(placement, "split_factor", 1)
    return mesh, placement.dim % parameter.dim(), factor, tuple(parameter.shape)


def _turned(
    found: tuple[Any, int, int, tuple[int, ...]], transposed: bool
) -> tuple[Any, int, int, tuple[int, ...]]:
    """[e, k, n] as [e, n, k]."""
    mesh, axis, factor, shape = found
    if not transposed:
        return found
    return mesh, {0: 0, 1: 2, 2: 1}[axis], factor, (shape[0], shape[2], shape[1])
