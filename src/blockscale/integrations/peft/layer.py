"""A LoRA adapter around a layer with a packed weight: base(x) + scaling * up(down(dropout(x)))."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.tuners_utils import check_adapters_to_merge
from torch import Tensor, nn

from blockscale.integrations.peft.dora import PackedDora, with_lengths
from blockscale.nn import Linear
from blockscale.nn.hooks import carry_hooks
from blockscale.tensor import quantize

logger = logging.getLogger(__name__)

# The ways to begin that compute nothing from the weight of the layer.
_STARTS = (True, False, "gaussian", "orthogonal", "eva")


if TYPE_CHECKING:
    _Adapter = Any  # peft has no types, and torch's are those of any module
else:

    class _Adapter(nn.Module, LoraLayer): ...


class LoraLinear(_Adapter):
    """What peft puts in the place of a `blockscale.nn.Linear`, which becomes its `base_layer`.

    Adapters have peft's dtype, float32 unless it is told otherwise, and the result that of the
    layer.
    """

    fan_in_fan_out = False  # weights are [out_features, in_features]
    base_layer: Any

    def __init__(
        self,
        base_layer: nn.Module,
        adapter_name: str,
        config: Any,
        r: int = 0,
        lora_alpha: int = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        LoraLayer.__init__(self, base_layer)
        self._unmerged: Linear | None = None  # the layer as it was before adapters were merged
        self._active_adapter = adapter_name
        self.update_layer(adapter_name, r, lora_alpha=lora_alpha, config=config, **options)

    def update_layer(
        self, adapter_name: str, r: int, lora_alpha: int, config: Any, **options: Any
    ) -> None:
        _refuse(config)
        super().update_layer(adapter_name, r, lora_alpha=lora_alpha, config=config, **options)

    @property
    def lora_variants(self) -> dict[tuple[str, ...], type[PackedDora] | None]:
        """By the settings of a config that ask for them; peft refuses every other one."""
        return {(): None, ("use_dora",): PackedDora}

    def _get_in_out_features(self, module: Linear) -> tuple[int, int]:
        return module.in_features, module.out_features

    def _get_base_layer_device_and_dtype(
        self, base_layer: Linear
    ) -> tuple[torch.device, torch.dtype | None]:
        """Of no dtype that adapters must have: packed weights have none."""
        return base_layer.weight.device, None

    def forward(self, x: Tensor, *positional: Any, **named: Any) -> Tensor:
        self._check_forward_args(x, *positional, **named)
        adapter_names = named.pop("adapter_names", None)
        if adapter_names is not None and not self.disable_adapters:
            mixed: Tensor = self._mixed_batch_forward(x, adapter_names=adapter_names)
            return mixed
        if self.disable_adapters and self.merged:
            self.unmerge()
        y: Tensor = self.base_layer(x)
        if self.disable_adapters or self.merged:
            return y
        dtype = y.dtype
        for name in self.active_adapters:
            if name in self.lora_A:
                y = self._changed(y, name, x)
        return y.to(dtype)

    def _changed(self, y: Tensor, name: str, x: Tensor) -> Tensor:
        """With what one adapter adds."""
        down, up = self.lora_A[name], self.lora_B[name]
        if not torch.is_autocast_enabled(x.device.type):
            x = self._cast_input_dtype(x, down.weight.dtype)
        if name in self.lora_variant:
            changed: Tensor = self.lora_variant[name].forward(self, name, x, y)
        else:
            changed = y + up(down(self.lora_dropout[name](x))) * self.scaling[name]
        return changed

    def get_delta_weight(self, adapter: str) -> Tensor:  # float32 [out_features, in_features]
        """What an adapter amounts to as a change of the weight."""
        down, up = self.lora_A[adapter].weight, self.lora_B[adapter].weight
        change: Tensor = up.float() @ down.float() * self.scaling[adapter]
        return change

    @torch.no_grad()
    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Adapters become part of the weight, which is decoded and quantised anew: that rounds it a
        second time, and much of a small change is lost. `unmerge` puts the old bytes back."""
        names = [
            name for name in check_adapters_to_merge(self, adapter_names) if name in self.lora_A
        ]
        if not names:
            return
        layer = self.get_base_layer()
        if self.base_layer is not layer:
            raise NotImplementedError(
                f"merging into {type(self.base_layer).__name__} around a packed weight: unload the "
                "other adapter first"
            )
        bias = self._bias_with(names, layer.bias)
        before = layer.dequantize()
        wanted = before
        for name in names:
            wanted = self._with_adapter(name, wanted)
        if safe_merge and not wanted.isfinite().all():
            raise ValueError("merge: an adapter makes weights that are not finite: it is broken")
        merged = _requantized(layer, before, wanted, bias)
        if self._unmerged is None:
            self._unmerged = layer
        self.base_layer = merged
        self.merged_adapters.extend(names)

    def _with_adapter(self, name: str, weight: Tensor) -> Tensor:
        change = self.get_delta_weight(name).to(weight.device)
        if name not in self.lora_variant:
            return weight + change
        unmerged = self.get_base_layer() if self._unmerged is None else self._unmerged
        lengths = self.lora_magnitude_vector[name].weight
        return with_lengths(lengths, unmerged.dequantize() + change, weight + change)

    def _bias_with(self, names: list[str], bias: Tensor | None) -> Tensor | None:
        """The bias of the layer with those that adapters have (`lora_bias`)."""
        added = [(self.lora_B[name].bias, self.scaling[name]) for name in names]
        changes = [scaling * change for change, scaling in added if change is not None]
        if not changes:
            return bias
        if bias is None:
            raise ValueError(
                "merge: adapters with lora_bias=True have a bias, and the layer has none to add it "
                "to: keep the adapter apart"
            )
        return sum(changes, bias.float()).to(bias.dtype)

    def unmerge(self) -> None:
        if self._unmerged is None:
            warnings.warn("Already unmerged. Nothing to do.", stacklevel=2)
            return
        self.base_layer, self._unmerged = self._unmerged, None
        self.merged_adapters.clear()

    def __repr__(self) -> str:
        return f"lora.{super().__repr__()}"


def _refuse(config: Any) -> None:
    """What would change the weight."""
    if config.init_lora_weights not in _STARTS:
        raise ValueError(
            f"init_lora_weights={config.init_lora_weights!r} takes the adapter out of the weight, "
            "which is packed here: initialise it on the unquantised model and quantise what "
            "remains, or use True, 'gaussian' or 'orthogonal'"
        )


def _requantized(layer: Linear, before: Tensor, wanted: Tensor, bias: Tensor | None) -> Linear:
    """A layer of the same format with another weight and bias. Says what that costs."""
    format = layer.weight.format
    warnings.warn(
        f"merging quantises weights to {format} a second time, which can lose much of what an "
        "adapter has learnt: keep the adapter apart, or merge it into the unquantised model. The "
        f"logger {__name__} has the numbers of each layer (level INFO); unmerge() is exact",
        stacklevel=4,
    )
    made = Linear.from_qtensor(quantize(wanted, format, scale="mse"), bias, layer.x_format)
    carry_hooks(layer, made.train(layer.training))
    error, change = (made.dequantize() - wanted).norm(), (wanted - before).norm()
    logger.info(
        "merged into %s: the change is %.2e of the weight, rounding %.2e of it and %.0f%% of the "
        "change",
        layer,
        change / before.norm(),
        error / before.norm(),
        100 * error / change,
    )
    return made
