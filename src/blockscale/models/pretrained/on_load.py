"""Weights that are quantised while they are loaded.

transformers reads one parameter at a time (experts that lie apart in the checkpoint are joined
first), asks whether it is to be quantised, and hands it to an operation that returns what to put
into the model. Ours returns nothing: it quantises the weight, lets go of the numbers, and once a
layer has all its parameters puts the quantised one in its place. Beside the packed model there is
never more than one weight in full.
"""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps

from blockscale.formats import Format
from blockscale.models.pretrained.config import BlockscaleConfig
from blockscale.nn import Experts, Linear
from blockscale.nn.fused import FusedExperts, read_fused
from blockscale.nn.plan import make_plan
from blockscale.nn.selection import Formats, selector
from blockscale.tensor import QTensor, quantize

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

    def takes(self, model: Any, name: str) -> bool:
        """Weights of the plan; biases of experts too, which are stored otherwise."""
        path, _, leaf = name.rpartition(".")
        if path not in self.formats:
            return False
        return leaf == "weight" or not isinstance(model.get_submodule(path), Linear | nn.Linear)

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
            layer = model.get_submodule(path)
            if isinstance(layer, nn.Linear):
                twin: nn.Module | None = self._linear(layer, path, tensor)
            else:
                twin = self._experts(layer, path, leaf, tensor)
            if twin is not None:
                model.set_submodule(path, twin)
            missing_keys.discard(name)
        return {}

    def check_complete(self) -> None:
        """Once all is loaded: no experts may be left over."""
        if self.quantized:
            path, parts = next(iter(self.quantized.items()))
            raise ValueError(
                f"the checkpoint has {', '.join(parts)} of {path} and lacks the other weights"
            )
        logger.info("blockscale quantised %d layers while loading them", len(self.formats))

    def _linear(self, layer: nn.Linear, path: str, weight: Tensor) -> Linear:
        (format,) = self.formats[path]
        q = quantize(weight, format, scale=self.scale)
        return Linear.from_qtensor(q, layer.bias, self.x_format).train(layer.training)

    def _experts(self, layer: nn.Module, path: str, leaf: str, tensor: Tensor) -> Experts | None:
        """None while parameters are missing."""
        waiting = getattr(layer, leaf)
        setattr(layer, leaf, nn.Parameter(tensor, requires_grad=False))
        fused = _fused(layer)
        parts = self.quantized.setdefault(path, {})
        if leaf in _WEIGHTS:
            format = self.formats[path][list(_WEIGHTS).index(leaf)]
            for role in _WEIGHTS[leaf]:
                weight = getattr(fused, role).contiguous()
                parts[role] = quantize(weight, format, scale=self.scale)
            setattr(layer, leaf, waiting)
        if len(parts) < 3 or any(b is not None and b.is_meta for b in fused[4:]):
            return None
        del self.quantized[path]
        return Experts.from_qtensors(
            **parts,
            activation=fused.activation,
            gate_bias=fused.gate_bias,
            up_bias=fused.up_bias,
            down_bias=fused.down_bias,
            x_format=self.x_format,
        ).train(layer.training)


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
    for names, decision in make_plan(model, formats, select, config.x_format):
        if isinstance(decision, str):
            logger.info("%s is kept: %s", names[0], decision)
        else:
            chosen[names[0]] = decision
    return chosen


def _fused(layer: nn.Module) -> FusedExperts:
    fused = read_fused(layer)
    if isinstance(fused, str):
        raise TypeError(fused)
    return fused
