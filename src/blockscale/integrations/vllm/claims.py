"""Which checkpoints the method "blockscale" serves, from what config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockscale.checkpoint.dialects import compressed_tensors, modelopt
from blockscale.nn.labels import NAME

_GPT_OSS = ("mxfp4", "gpt_oss_mxfp4")


def readable(described: Mapping[str, Any], model_type: str = "") -> bool:
    """Whether this library reads the weights that a quantization_config describes."""
    method = str(described.get("quant_method", ""))
    if method == NAME:
        return True
    if method.startswith("modelopt"):
        found = modelopt.algorithms(_modelopt_description(described)).values()
        return all(str(each).upper() in modelopt.ALGORITHMS for each in found)
    if method == compressed_tensors.NAME:
        return compressed_tensors.reads(described)
    return method in _GPT_OSS and model_type == "gpt_oss"


def _modelopt_description(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """Older files have it one level below."""
    below = described.get("quantization")
    return below if isinstance(below, Mapping) and not described.get("quant_algo") else described


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
