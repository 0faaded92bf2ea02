"""compressed-tensors: what vLLM, SGLang and transformers read.

    nvfp4         weight_packed U8, weight_scale F8_E4M3,
                  weight_global_scale F32 [1], the reciprocal of tensor_scale
    mxfp4, mxfp6  weight_packed U8, weight_scale U8
    mxfp8         weight F8_E4M3, weight_scale U8

Static scales of NVFP4 activations are `input_global_scale` F32 [1], reciprocal too; here they are
`input_scale`, a plain tensor that multiplies. Its schema refuses keys that it does not know.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blockscale.checkpoint.dialects.contract import Contents, Description, quant_method
from blockscale.checkpoint.dialects.parts import (
    check_blocks,
    inverse,
    inverse_of_scale,
    is_scalar,
    siblings,
)
from blockscale.checkpoint.files import Entry, Files
from blockscale.checkpoint.stored import Parts, Stored, module_of, row_windows
from blockscale.formats import MXFP4, MXFP6_E2M3, MXFP8, NVFP4, Format
from blockscale.tensor import QTensor

NAME = "compressed-tensors"
SHARES_TENSOR_SCALE = True
_MIXED = "mixed-precision"


@dataclass(frozen=True)
class _Scheme:
    """How one format is stored and described."""

    format: Format
    label: str
    codes: str  # the tensor with the codes
    codes_dtype: torch.dtype
    scale_dtype: torch.dtype

    @property
    def roles(self) -> dict[str, torch.dtype]:
        roles = {self.codes: self.codes_dtype, "weight_scale": self.scale_dtype}
        return roles | ({"weight_global_scale": torch.float32} if self.has_global_scale else {})

    @property
    def has_global_scale(self) -> bool:
        return self.format.has_tensor_scale

    def arguments(self, *, dynamic: bool | str) -> dict[str, Any]:
        """Its QuantizationArgs: "local" is block scales on the fly under a static tensor scale."""
        return {
            "num_bits": self.format.element.bits,
            "type": "float",
            "strategy": "tensor_group" if self.has_global_scale else "group",
            "group_size": self.format.block,
            "symmetric": True,
            "dynamic": dynamic,
            "scale_dtype": str(self.scale_dtype),
        }


_SCHEMES = (
    _Scheme(NVFP4, "nvfp4-pack-quantized", "weight_packed", torch.uint8, torch.float8_e4m3fn),
    _Scheme(MXFP4, "mxfp4-pack-quantized", "weight_packed", torch.uint8, torch.uint8),
    _Scheme(MXFP6_E2M3, "mxfp6-pack-quantized", "weight_packed", torch.uint8, torch.uint8),
    _Scheme(MXFP8, "mxfp8-quantized", "weight", torch.float8_e4m3fn, torch.uint8),
)
_BY_FORMAT = {scheme.format.name: scheme for scheme in _SCHEMES}
LABELS = {scheme.label for scheme in _SCHEMES}


# --- reading ---


def recognises(files: Files) -> bool:
    return quant_method(files) == NAME


def find(files: Files) -> list[Stored]:
    _check_description(files)
    found = []
    for entry in files.entries.values():
        module, _, role = entry.name.rpartition(".")
        if role == "weight_scale":
            found.append(_find_weight(files, module))
        if role == "input_global_scale":
            found.append(_find_input_scale(files, module, entry))
    return found


def _find_input_scale(files: Files, module: str, entry: Entry) -> Stored:
    """Whatever number it is: experts that saw no token when a model was calibrated have 0 or Inf,
    and published checkpoints have such experts."""
    if not is_scalar(entry):
        raise ValueError(
            f"{files.path}: {entry.name} must be one number, got shape {list(entry.shape)}"
        )

    def assemble(parts: Parts) -> Tensor:
        return inverse(parts[""].reshape(()))

    return Stored(f"{module}.input_scale", (), {"": entry}, assemble)


def reads(described: Mapping[str, Any]) -> bool:
    """Whether every group of weights has a format that is read here, and none is transformed."""
    groups = described.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(g, dict) for g in groups.values()):
        return False
    weights = _groups_of_weights(groups)
    labels = [group.get("format") or described.get("format") for group in weights]
    read = bool(labels) and all(label in tuple(LABELS) for label in labels)
    return read and not any(map(_has_zero_points, weights)) and not _transforms(described)


def _groups_of_weights(groups: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Without those of attention alone, whose queries and caches are quantised and no weights."""
    return [group for group in groups.values() if not _is_of_activations(group)]


def _is_of_activations(group: Mapping[str, Any]) -> bool:
    inputs, outputs = group.get("input_activations"), group.get("output_activations")
    return group.get("weights") is None and not (inputs is None and outputs is None)


def _has_zero_points(group: Mapping[str, Any]) -> bool:
    weights = group.get("weights")
    return isinstance(weights, dict) and weights.get("symmetric") is False


def _transforms(described: Mapping[str, Any]) -> list[str]:
    """The names of what is done to activations before a product, such as a rotation."""
    found = described.get("transform_config")
    found = found.get("config_groups", found) if isinstance(found, dict) else found
    return list(found) if isinstance(found, dict) else [str(found)] if found else []


def _check_description(files: Files) -> None:
    """Integers, per-tensor scales and sparsity share the file format and are not block-scaled."""
    config = files.description
    if transforms := _transforms(config):
        raise ValueError(
            f"{files.path}: transform_config {', '.join(transforms):.80} is not read: its weights "
            "belong to transformed activations, and here these stay as they are"
        )
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(g, dict) for g in groups.values()):
        raise ValueError(f"{files.path}: quantization_config has no config_groups")
    for group in _groups_of_weights(groups):
        if _has_zero_points(group):
            raise ValueError(
                f"{files.path}: weights with zero points (symmetric: false) are not read: "
                "quantise them symmetrically"
            )
        label = group.get("format") or config.get("format")
        if label not in (*LABELS, _MIXED):
            raise ValueError(
                f"{files.path}: compressed-tensors format {label!r:.80} is not read: only "
                f"{', '.join(sorted(LABELS))}"
            )


def _find_weight(files: Files, module: str) -> Stored:
    scheme = _scheme_of(files, module)
    parts = siblings(files, module, scheme.roles)
    codes, scale = parts[scheme.codes], parts["weight_scale"]
    if len(codes.shape) < 2:
        raise ValueError(f"{files.path}: {codes.name} must be [n, bytes], got {list(codes.shape)}")
    shape = (*codes.shape[:-1], codes.shape[-1] * 8 // scheme.format.element.bits)
    check_blocks(files, codes, scale, shape, scheme.format.block)
    if scheme.has_global_scale and not is_scalar(parts["weight_global_scale"]):
        raise ValueError(
            f"{files.path}: {module}.weight_global_scale must be one number, got shape "
            f"{list(parts['weight_global_scale'].shape)}"
        )
    return Stored(
        f"{module}.weight",
        shape,
        parts,
        partial(_assemble, scheme),
        scheme.format,
        row_windows(scheme.format, shape, scheme.codes, "weight_scale"),
    )


def _scheme_of(files: Files, module: str) -> _Scheme:
    """By what is stored: four- and six-bit codes differ in their bytes for a scale, 16 and 24."""
    entries = files.entries
    if f"{module}.weight_packed" not in entries:
        return _BY_FORMAT["mxfp8"]
    if f"{module}.weight_global_scale" in entries:
        return _BY_FORMAT["nvfp4"]
    packed, scale = entries[f"{module}.weight_packed"], entries[f"{module}.weight_scale"]
    six_bits = packed.shape[-1:] == tuple(24 * columns for columns in scale.shape[-1:])
    return _BY_FORMAT["mxfp6_e2m3" if six_bits else "mxfp4"]


def _assemble(scheme: _Scheme, parts: Parts) -> QTensor:
    return QTensor.from_storage(
        scheme.format,
        parts[scheme.codes].view(torch.uint8),
        parts["weight_scale"].view(torch.uint8),
        tensor_scale=inverse(parts["weight_global_scale"].reshape(()))
        if scheme.has_global_scale
        else None,
    )


# --- writing ---


def refuses(name: str, format: Format, shape: tuple[int, ...]) -> str | None:
    if _BY_FORMAT.get(format.name, _SCHEMES[0]).format != format:
        return f"compressed-tensors has no {format}: it has {', '.join(_BY_FORMAT)}"
    if len(shape) != 2:
        return f"compressed-tensors holds matrices [n, k], not {list(shape)}"
    if not name.endswith(".weight"):
        return "compressed-tensors names tensors after modules: expected MODULE.weight"
    return None


def split(name: str, value: QTensor | Tensor, quantized: Container[str]) -> dict[str, Tensor]:
    module, _, role = name.rpartition(".")
    if isinstance(value, Tensor):
        if role == "input_scale":
            if value.numel() != 1:
                raise ValueError(f"{name} must be one number, got shape {list(value.shape)}")
            return {f"{module}.input_global_scale": inverse(value).reshape(1)}
        return {name: value}
    scheme = _BY_FORMAT[value.format.name]
    parts = {
        scheme.codes: value.codes.view(scheme.codes_dtype),
        "weight_scale": value.scale.view(scheme.scale_dtype),
    }
    if value.tensor_scale is not None:
        parts["weight_global_scale"] = inverse_of_scale(name, value.tensor_scale.reshape(1))
    return {f"{module}.{role}": part for role, part in parts.items()}


def describe(contents: Contents) -> Description:
    """One group for all linear layers but those ignored; several schemes list their layers."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for name, format in contents.formats.items():
        module = module_of(name)
        groups.setdefault((format.name, module in contents.static_inputs), []).append(module)
    labels = {_BY_FORMAT[format].label for format, _ in groups}
    return Description(
        {
            "quant_method": NAME,
            "format": labels.pop() if len(labels) == 1 else _MIXED,
            "quantization_status": "compressed",
            "global_compression_ratio": None,
            "kv_cache_scheme": None,
            "config_groups": {
                f"group_{index}": _group(
                    _BY_FORMAT[format], ["Linear"] if len(groups) == 1 else modules, static
                )
                for index, ((format, static), modules) in enumerate(groups.items())
            },
            "ignore": contents.kept,
        }
    )


def _group(scheme: _Scheme, targets: list[str], static_inputs: bool) -> dict[str, Any]:
    return {
        "targets": targets,
        "weights": scheme.arguments(dynamic=False),
        "input_activations": scheme.arguments(dynamic="local") if static_inputs else None,
        "output_activations": None,
        "format": scheme.label,
    }
