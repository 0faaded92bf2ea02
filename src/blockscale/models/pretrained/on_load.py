"""Weights that are quantised while they are loaded.

transformers reads one parameter at a time (experts that lie apart in the checkpoint are joined
first), asks whether it is to be quantised, and hands it to an operation that returns what to put
into the model. Ours returns nothing: it quantises the weight, lets go of the numbers, and once a
layer has all its parameters puts the quantised one in its place. Matrices that share a tensor scale
wait for each other. Beside the packed model there is never more than one weight in full, or the
few that wait.

Of a model that is spread over ranks each parameter comes as this rank's part. The parts have the
tensor scale of the whole, so that together they are the bytes that one rank would make.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps

from blockscale.formats import Format
from blockscale.models.pretrained.config import BlockscaleConfig
from blockscale.models.pretrained.placements import (
    Shardings,
    largest_over_ranks,
    layer_shardings,
    ranks_of,
)
from blockscale.nn import Experts, Linear
from blockscale.nn.fused import FusedExperts, read_fused
from blockscale.nn.plan import make_plan
from blockscale.nn.projections import fused_groups, quantize_sharing
from blockscale.nn.selection import Formats, selector
from blockscale.nn.sharding import Sharding
from blockscale.tensor import QTensor

logger = logging.getLogger(__name__)

_WEIGHTS = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}


class QuantizeOnLoad(ConversionOps):
    """The plan for one model, and the layers that wait for the rest of their parameters."""

    def __init__(self, model: Any, config: BlockscaleConfig) -> None:
        if config.format is None:
            raise ValueError(
                "BlockscaleConfig needs a format to quantise this model, whose weights are plain: "
                'BlockscaleConfig("nvfp4")'
            )
        self.scale, self.x_format = config.scale, config.x_format
        self.formats = _choose(model, Formats(config.format), config)
        self.quantized: dict[str, dict[str, QTensor]] = {}  # experts -> gate, up, down
        self.group_of = _groups(model, self.formats)
        self.waiting: dict[str, Tensor] = {}  # matrices that share a tensor scale
        self.ranks: Any = None  # of a model that is spread over several
        self.shardings: dict[str, Shardings] = {}  # of all layers, once they are known

    def takes(self, model: Any, name: str) -> bool:
        """Weights of the plan; biases of experts too, which are stored otherwise."""
        if self.formats and not self.shardings:  # asked for the first time
            self._look_at_ranks(model)
        path, _, leaf = name.rpartition(".")
        if path not in self.formats:
            return False
        return leaf == "weight" or not isinstance(model.get_submodule(path), Linear | nn.Linear)

    def _look_at_ranks(self, model: Any) -> None:
        """How those of a model that has been distributed share the layers; an error if they cannot.

        transformers hides the errors of `convert` in its log.
        """
        self.shardings = {path: self._cut(model, path) for path in self.formats}
        self.ranks = ranks_of(model)
        if self.ranks is not None:
            for path, shardings in self.shardings.items():
                self.ranks.check(path, is_sharded=bool(shardings))

    def _cut(self, model: Any, path: str) -> Shardings:
        roles = ("weight",) if len(self.formats[path]) == 1 else ("gate", "down")
        formats = dict(zip(roles, self.formats[path], strict=True))
        formats |= {"up": formats["gate"]} if "gate" in formats else {}
        return layer_shardings(path, model.get_submodule(path), formats)

    def convert(
        self,
        input_dict: dict[str, Any],
        *,
        model: Any,
        missing_keys: set[str],
        **context: Any,
    ) -> dict[str, Tensor]:
        for name, given in input_dict.items():
            tensor = given[0] if isinstance(given, list) else given
            path, _, leaf = name.rpartition(".")
            if isinstance(model.get_submodule(path), nn.Linear):
                self._linears(model, path, tensor)
            else:
                self._experts(model, path, leaf, tensor)
            missing_keys.discard(name)
        return {}

    def check_complete(self) -> None:
        """Once all is loaded: no experts and no matrices may be left over."""
        if self.waiting:
            path = next(iter(self.waiting))
            lacking = [each for each in self.group_of[path] if each not in self.waiting]
            raise ValueError(f"the checkpoint has {path} and lacks {', '.join(lacking)}")
        if self.quantized:
            path, parts = next(iter(self.quantized.items()))
            raise ValueError(
                f"the checkpoint has {', '.join(parts)} of {path} and lacks the other weights"
            )
        logger.info("blockscale quantised %d layers while loading them", len(self.formats))

    def _linears(self, model: Any, path: str, weight: Tensor) -> None:
        """The layer, with those that share its tensor scale, once the weights of all are there."""
        self.waiting[path] = weight
        group = self.group_of[path]
        if any(each not in self.waiting for each in group):
            return
        weights = {each: self.waiting.pop(each) for each in group}
        (format,) = self.formats[path]
        shardings = [self.shardings[each].get("weight") for each in group]
        made = quantize_sharing(list(weights.values()), format, self.scale, _over_ranks(shardings))
        for each, q, sharding in zip(group, made, shardings, strict=True):
            layer = model.get_submodule(each)
            twin = Linear.from_qtensor(q, layer.bias, self.x_format, sharding=sharding)
            self._put(model, each, twin.train(layer.training))

    def _experts(self, model: Any, path: str, leaf: str, tensor: Tensor) -> None:
        """The layer, once all its parameters are there."""
        layer, shardings = model.get_submodule(path), self.shardings[path]
        if path not in self.quantized:
            self.quantized[path] = {}
            _keep_parts(layer)
        parts = self.quantized[path]
        waiting = getattr(layer, leaf)
        setattr(layer, leaf, nn.Parameter(tensor, requires_grad=False))
        fused = _fused(layer)
        if leaf in _WEIGHTS:
            format = self.formats[path][list(_WEIGHTS).index(leaf)]
            roles = _WEIGHTS[leaf]
            weights = [getattr(fused, role) for role in roles]
            over_ranks = _over_ranks([shardings.get(role) for role in roles])
            made = quantize_sharing(weights, format, self.scale, over_ranks)
            parts |= dict(zip(roles, made, strict=True))
            setattr(layer, leaf, waiting)
        if len(parts) < 3 or any(b is not None and b.is_meta for b in _biases(fused)):
            return
        del self.quantized[path]
        twin = Experts.from_qtensors(
            **parts,
            activation=fused.activation,
            gate_bias=fused.gate_bias,
            up_bias=fused.up_bias,
            down_bias=fused.down_bias,
            x_format=self.x_format,
            stacked=fused.stacked,
            shardings=shardings,
        )
        self._put(model, path, twin.train(layer.training))

    def _put(self, model: Any, path: str, twin: Linear | Experts) -> None:
        if self.ranks is not None:
            self.ranks.install(path, twin)
        model.set_submodule(path, twin)


def _over_ranks(shardings: Sequence[Sharding | None]) -> Callable[[Tensor], Tensor] | None:
    """How matrices that share a tensor scale find it where ranks share them."""
    shared = next((each for each in shardings if each is not None), None)
    return None if shared is None else partial(largest_over_ranks, shared)


def _keep_parts(layer: nn.Module) -> None:
    """DTensors without bytes become this rank's parts, which can be cut further like any tensor."""
    for name, parameter in layer._parameters.items():
        part: Any = parameter
        if hasattr(part, "to_local"):
            layer._parameters[name] = nn.Parameter(part.to_local(), requires_grad=False)


def _choose(
    model: Any, formats: Formats, config: BlockscaleConfig
) -> dict[str, tuple[Format, ...]]:
    """The formats of each layer that is quantised; the reasons for the others go to the log."""
    # Weights that are tied later: one of the two is not in the checkpoint.
    tied = {name for pair in model.all_tied_weights_keys.items() for name in pair}
    wanted = selector(config.layers)

    def select(name: str, module: nn.Module) -> str:
        if f"{name}.weight" in tied:
            return "shares its weight with another module"
        return wanted(name, module)

    chosen = {}
    for names, decision, _ in make_plan(model, formats, select, config.x_format):
        if isinstance(decision, str):
            logger.info("%s is kept: %s", names[0], decision)
        else:
            chosen[names[0]] = decision
    return chosen


def _biases(fused: FusedExperts) -> tuple[Tensor | None, ...]:
    return fused.gate_bias, fused.up_bias, fused.down_bias


def _groups(model: Any, formats: Mapping[str, tuple[Format, ...]]) -> dict[str, list[str]]:
    """For each linear layer, the layers that it shares its tensor scale with, itself among them."""
    layers = {path: model.get_submodule(path) for path in formats}
    linears = {p: each for p, each in layers.items() if isinstance(each, nn.Linear)}
    groups = fused_groups(
        {f"{path}.weight": formats[path][0] for path in linears},
        {f"{path}.weight": tuple(each.weight.shape) for path, each in linears.items()},
    )
    members = [[name.removesuffix(".weight") for name in group] for group in groups]
    return {path: group for group in members for path in group}


def _fused(layer: nn.Module) -> FusedExperts:
    fused = read_fused(layer)
    if isinstance(fused, str):
        raise TypeError(fused)
    return fused
