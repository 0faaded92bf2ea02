"""Which checkpoints the method "blockscale" serves, from what config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockscale.checkpoint.dialects.compressed_tensors import LABELS
from blockscale.nn.labels import NAME

_MODELOPT = ("NVFP4", "W4A16_NVFP4", "MXFP8", "MIXED_PRECISION")
_GPT_OSS = ("mxfp4", "gpt_oss_mxfp4")


def readable(described: Mapping[str, Any], model_type: str = "") -> bool:
    """Whether this library reads the weights that a quantization_config describes."""
    method = str(described.get("quant_method", ""))
    if method == NAME:
        return True
    if method.startswith("modelopt"):
        return _algorithm(described) in _MODELOPT
    if method == "compressed-tensors":
        groups = (described.get("config_groups") or {}).values()
        labels = {group.get("format") or described.get("format") for group in groups}
        return bool(labels) and labels <= LABELS
    return method in _GPT_OSS and model_type == "gpt_oss"


def _algorithm(described: Mapping[str, Any]) -> str:
    """Older files have it one level below."""
    below = described.get("quantization")
    found = described.get("quant_algo") or (isinstance(below, Mapping) and below.get("quant_algo"))
    return str(found or "").upper()


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
