"""Which checkpoints the method "blockscale" serves, from what config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockscale.checkpoint.dialects import compressed_tensors, gpt_oss, modelopt
from blockscale.nn.labels import NAME


def readable(described: Mapping[str, Any], model_type: str = "") -> bool:
    """Whether this library reads the weights that a quantization_config describes."""
    method = str(described.get("quant_method", ""))
    if method == NAME:
        return True
    if modelopt.is_method(method):
        return modelopt.reads(described)
    if method == compressed_tensors.NAME:
        return compressed_tensors.reads(described)
    return method in gpt_oss.METHODS and model_type == "gpt_oss"


def claims(
    described: Mapping[str, Any],
    model_type: str,
    *,
    asked: str | None,
    on_cpu: bool,
    everywhere: bool | None,
) -> bool:
    """Whether the method "blockscale" takes a checkpoint.

    asked        by `--quantization`
    everywhere   what BLOCKSCALE_VLLM says: True on GPUs too, False only where asked
    """
    if not readable(described, model_type):
        return False
    if described.get("quant_method") == NAME or asked == NAME:
        return True
    if asked is not None:
        return False
    return on_cpu if everywhere is None else everywhere
