"""The hooks of transformers that are used: few, since their names move between its versions."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import transformers
from packaging.version import Version
from torch import Tensor
from transformers.quantizers.base import HfQuantizer

from blockscale.models.pretrained.config import BlockscaleConfig
from blockscale.models.pretrained.on_load import QuantizeOnLoad
from blockscale.models.pretrained.stored import StoredWeights
from blockscale.nn.labels import VERSION
from blockscale.nn.saved_config import common_x_format

# Before, it leaves tensors of packed checkpoints whose names changed in the dtype of the file. What
# it takes for plain it loads without threads.
_CASTS_RENAMED = Version(transformers.__version__) >= Version("5.21")


class BlockscaleQuantizer(HfQuantizer):
    """Loads packed weights as they are, or quantises plain ones; saves the blockscale dialect.

    The config of another library, such as `Mxfp4Config`, says no more than its checkpoint does, and
    makes room for ours, since ours is what a saved model needs.
    """

    pre_quantized: bool  # set by transformers: what a checkpoint holds is packed

    def __init__(self, quantization_config: Any, **kwargs: Any) -> None:
        if not isinstance(quantization_config, BlockscaleConfig):
            quantization_config = BlockscaleConfig()
        super().__init__(quantization_config, **kwargs)
        self.stored: StoredWeights | None = None
        self.on_load: QuantizeOnLoad | None = None

    # --- loading ---

    def _process_model_before_weight_loading(
        self,
        model: Any,
        checkpoint_files: Sequence[str] | None = None,
        device_map: Any = None,
        **kwargs: Any,
    ) -> None:
        if not self.pre_quantized:
            self.on_load = QuantizeOnLoad(model, self.quantization_config)
            return
        if not checkpoint_files:
            raise ValueError(
                "packed weights are read from files: give from_pretrained a folder or the name of "
                "a repository, not a state_dict"
            )
        self.stored = StoredWeights(model, checkpoint_files)
        self.stored.make_room(model, device_map)
        if not _CASTS_RENAMED:  # what transformers itself loads now is plain
            self.pre_quantized = False

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        return self.on_load is not None and self.on_load.takes(model, param_name)

    def get_quantize_ops(self) -> QuantizeOnLoad | None:
        return self.on_load

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        _check_devices(model)
        if self.stored is not None:
            self.stored.fill(model, self.quantization_config.x_format)
            self.stored, self.pre_quantized = None, True  # the files are closed with it
        if self.on_load is not None:
            self.on_load.check_complete()
            self.on_load = None
        # Saved names are those of the model: renamed back, they would not be those in config.json.
        model._weight_conversions = []
        return model

    # --- saving ---

    def is_serializable(self) -> bool:
        return True

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        described = copy(self.quantization_config)  # the caller's, who may load with it again
        described.version, described.tensors = VERSION, None
        described.x_format = common_x_format(model)
        model.config.quantization_config = described
        return model.state_dict(), {}

    # --- what may be done with a model ---

    @property
    def is_trainable(self) -> bool:
        """Adapters are; gradients flow through packed weights."""
        return True

    @property
    def is_compileable(self) -> bool:
        return True


def _check_devices(model: Any) -> None:
    """Offloaded layers are fetched by hooks that know parameters, not packed bytes."""
    devices = {str(device) for device in getattr(model, "hf_device_map", {}).values()}
    if "disk" in devices or (len(devices) > 1 and "cpu" in devices):
        raise ValueError(
            f"device_map spreads the model over {', '.join(sorted(devices))}: packed layers are "
            "not offloaded; use GPUs only, or the CPU only"
        )
