"""How transformers comes to know of this library, and forgets it.

It knows quantisers by the `quant_method` of config.json. "blockscale" and "modelopt" are added.
For "compressed-tensors" and "mxfp4" it has its own, which decompress FP4 to bfloat16 on most
machines: there a `Choice` is put between, which takes the formats that are read here and leaves
everything else, and every request for plain numbers (`dequantize=True`), to the original.
`unregister` puts all back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.utils.quantization_config import QuantizationConfigMixin

from blockscale.checkpoint.dialects import compressed_tensors
from blockscale.models.pretrained.config import BlockscaleConfig
from blockscale.models.pretrained.quantizer import BlockscaleQuantizer

logger = logging.getLogger(__name__)


class ModelOptConfig(QuantizationConfigMixin):
    """What config.json says about a ModelOpt checkpoint, as it is said."""

    def __init__(self, **description: Any) -> None:
        self.__dict__.update(description)


@dataclass(frozen=True)
class Choice:
    """Stands where transformers looks for a quantiser, and makes one of two."""

    method: str
    original: Any
    reads: Callable[[Any], bool]  # a config of transformers

    def __call__(self, config: Any, pre_quantized: bool = True, **kwargs: Any) -> Any:
        ours = pre_quantized and not getattr(config, "dequantize", False) and self.reads(config)
        logger.info("%s: %s acts", self.method, "blockscale" if ours else "transformers")
        act = BlockscaleQuantizer if ours else self.original
        return act(config, pre_quantized=pre_quantized, **kwargs)


def _reads_compressed_tensors(config: Any) -> bool:
    """Of transforms a config of transformers may say nothing: then opening the files refuses."""
    return compressed_tensors.reads(config.to_dict())


def _reads_mxfp4(config: Any) -> bool:
    return True


_ADDED = {"blockscale": BlockscaleConfig, "modelopt": ModelOptConfig}
_SHARED = {"compressed-tensors": _reads_compressed_tensors, "mxfp4": _reads_mxfp4}


def register() -> None:
    """Importing the package does this; a second time changes nothing."""
    for method, config in _ADDED.items():
        if method not in AUTO_QUANTIZER_MAPPING:
            register_quantizer(method)(BlockscaleQuantizer)
            register_quantization_config(method)(config)
    for method, reads in _SHARED.items():
        known = AUTO_QUANTIZER_MAPPING[method]
        if not isinstance(known, Choice):
            AUTO_QUANTIZER_MAPPING[method] = Choice(method, known, reads)


def unregister() -> None:
    """As before the import. Models that are loaded stay as they are."""
    for method, config in _ADDED.items():
        if AUTO_QUANTIZATION_CONFIG_MAPPING.get(method) is config:
            del AUTO_QUANTIZATION_CONFIG_MAPPING[method], AUTO_QUANTIZER_MAPPING[method]
    for method in _SHARED:
        known = AUTO_QUANTIZER_MAPPING[method]
        if isinstance(known, Choice):
            AUTO_QUANTIZER_MAPPING[method] = known.original
