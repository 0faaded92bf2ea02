"""ModelOpt: scales multiply, as here.

    NVFP4, W4A16_NVFP4  weight U8, weight_scale F8_E4M3, weight_scale_2 F32 [];
                        NVFP4 has a static scale of activations too, input_scale F32 []
    MXFP8               weight F8_E4M3, weight_scale U8

The description stands twice: in hf_quant_config.json, and in the words of compressed-tensors in
config.json.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from blockscale.checkpoint.dialects.contract import Contents, Description, quant_method
from blockscale.checkpoint.dialects.parts import check_blocks, is_scalar, siblings
from blockscale.checkpoint.files import Files
from blockscale.checkpoint.stored import Parts, Stored, module_of, row_windows
from blockscale.formats import MXFP8, NVFP4, Format
from blockscale.tensor import QTensor

NAME = "modelopt"
SHARES_TENSOR_SCALE = True
_SIDE_FILE = "hf_quant_config.json"
_MIXED = "MIXED_PRECISION"
_ALGORITHMS = ("NVFP4", "W4A16_NVFP4", "MXFP8")
_CODES = {NVFP4: torch.uint8, MXFP8: torch.float8_e4m3fn}
_SCALES = {NVFP4: torch.float8_e4m3fn, MXFP8: torch.uint8}
# Ends of names, and what has such tensors.
_UNREAD = {
    "_weight_scale": "fused experts, which ModelOpt packs along k and transposes,",
    ".pre_quant_scale": "weights whose inputs are scaled column by column, as AWQ does,",
}


# --- reading ---


def is_method(method: str) -> bool:
    """Engines have a name for each algorithm, such as modelopt_fp4."""
    return method == NAME or method.startswith(f"{NAME}_")


def reads(described: Mapping[str, Any]) -> bool:
    """Whether every layer that a quantization_config describes has an algorithm that is read."""
    return all(map(_is_read, _algorithms(described).values()))


def recognises(files: Files) -> bool:
    """Older checkpoints have the side file only."""
    method = quant_method(files)
    return _side_file(files) is not None if method is None else is_method(method)


def _side_file(files: Files) -> dict[str, Any] | None:
    side = files.json(_SIDE_FILE) if files.path.is_dir() else None
    return None if side is None else side.get("quantization")


def find(files: Files) -> list[Stored]:
    _check_algorithms(files)
    for name in files.entries:
        for end, what in _UNREAD.items():
            if name.endswith(end):
                raise ValueError(f"{files.path}: {name}: {what} are not read")
    modules = (module_of(name) for name in files.entries if name.endswith(".weight_scale"))
    return [_find_weight(files, module) for module in modules]


def _algorithms(described: Mapping[str, Any]) -> dict[str, Any]:
    """By layer where they are mixed; otherwise the one of all layers, under ""."""
    below = described.get("quantization")  # where older files have it
    if isinstance(below, Mapping) and not described.get("quant_algo"):
        described = below
    layers = described.get("quantized_layers")
    if described.get("quant_algo") != _MIXED or not isinstance(layers, dict) or not layers:
        return {"": described.get("quant_algo")}
    return {
        layer: each.get("quant_algo") if isinstance(each, dict) else None
        for layer, each in layers.items()
    }


def _is_read(algorithm: Any) -> bool:
    return isinstance(algorithm, str) and algorithm.upper() in _ALGORITHMS


def _check_algorithms(files: Files) -> None:
    side = _side_file(files)
    described = files.description or side
    described = described if isinstance(described, dict) else {}
    if "quantized_layers" not in described and isinstance(side, dict):
        described = {**described, "quantized_layers": side.get("quantized_layers")}
    for layer, algorithm in _algorithms(described).items():
        if not _is_read(algorithm):
            where = f" of {layer}" if layer else ""
            hint = " without quantized_layers" if algorithm == _MIXED else ""
            raise ValueError(
                f"{files.path}: ModelOpt quant_algo {algorithm!r:.80}{where}{hint} is not read: "
                f"only {', '.join(_ALGORITHMS)}"
            )


def _find_weight(files: Files, module: str) -> Stored:
    format = NVFP4 if f"{module}.weight_scale_2" in files.entries else MXFP8
    roles = {"weight": _CODES[format], "weight_scale": _SCALES[format]}
    if format.has_tensor_scale:
        roles["weight_scale_2"] = torch.float32
    parts = siblings(files, module, roles)
    codes, scale = parts["weight"], parts["weight_scale"]
    if len(codes.shape) < 2:
        raise ValueError(f"{files.path}: {codes.name} must be [n, bytes], got {list(codes.shape)}")
    shape = (*codes.shape[:-1], codes.shape[-1] * 8 // format.element.bits)
    check_blocks(files, codes, scale, shape, format.block)
    if format.has_tensor_scale and not is_scalar(parts["weight_scale_2"]):
        raise ValueError(
            f"{files.path}: {module}.weight_scale_2 must be one number, got shape "
            f"{list(parts['weight_scale_2'].shape)}"
        )
    windows = row_windows(format, shape, "weight", "weight_scale")
    return Stored(f"{module}.weight", shape, parts, partial(_assemble, format), format, windows)


def _assemble(format: Format, parts: Parts) -> QTensor:
    tensor_scale = parts["weight_scale_2"].reshape(()) if format.has_tensor_scale else None
    return QTensor.from_storage(
        format,
        parts["weight"].view(torch.uint8),
        parts["weight_scale"].view(torch.uint8),
        tensor_scale=tensor_scale,
    )


# --- writing ---


def refuses(name: str, format: Format, shape: tuple[int, ...]) -> str | None:
    if format not in _CODES:
        return f"ModelOpt checkpoints hold nvfp4 and mxfp8, not {format}"
    if len(shape) != 2:
        return f"ModelOpt checkpoints hold matrices [n, k], not {list(shape)}"
    if not name.endswith(".weight"):
        return "ModelOpt names tensors after modules: expected MODULE.weight"
    return None


def split(name: str, value: QTensor | Tensor, quantized: Container[str]) -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {name: value}
    parts = {
        "weight": value.codes.view(_CODES[value.format]),
        "weight_scale": value.scale.view(_SCALES[value.format]),
    }
    if value.tensor_scale is not None:
        parts["weight_scale_2"] = value.tensor_scale
    return {f"{module_of(name)}.{role}": part for role, part in parts.items()}


def describe(contents: Contents) -> Description:
    layers = {
        module_of(name): _layer(format, module_of(name) in contents.static_inputs)
        for name, format in contents.formats.items()
    }
    kinds = {tuple(layer.items()) for layer in layers.values()}
    quantization: dict[str, Any] = {"kv_cache_quant_algo": None, "exclude_modules": contents.kept}
    if len(kinds) == 1:
        quantization |= dict(kinds.pop())
    else:
        quantization |= {"quant_algo": _MIXED, "quantized_layers": layers}
    # Loaders look for this producer; the version says who really wrote it.
    producer = {"name": NAME, "version": f"blockscale {version('blockscale')}"}
    config = {
        "quant_method": NAME,
        "quant_algo": quantization["quant_algo"],
        "config_groups": _groups(layers),
        "ignore": contents.kept,
        "producer": producer,
    }
    if "quantized_layers" in quantization:
        config["quantized_layers"] = layers
    return Description(config, {_SIDE_FILE: {"producer": producer, "quantization": quantization}})


def _layer(format: Format, static_inputs: bool) -> dict[str, Any]:
    if format == MXFP8:
        return {"quant_algo": "MXFP8", "group_size": MXFP8.block}
    return {"quant_algo": "NVFP4" if static_inputs else "W4A16_NVFP4", "group_size": NVFP4.block}


def _groups(layers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The layers by algorithm, as ModelOpt says it in config.json."""
    modules: dict[str, list[str]] = {}
    for module, layer in layers.items():
        modules.setdefault(layer["quant_algo"], []).append(module)
    groups = {}
    for index, (algorithm, members) in enumerate(modules.items()):
        format = MXFP8 if algorithm == "MXFP8" else NVFP4
        arguments = {
            "dynamic": False,
            "num_bits": format.element.bits,
            "type": "float",
            "group_size": format.block,
        }
        group: dict[str, Any] = {
            "weights": arguments,
            "targets": ["Linear"] if len(modules) == 1 else sorted(members),
        }
        if algorithm != "W4A16_NVFP4":
            group["input_activations"] = arguments
        groups[f"group_{index}"] = group
    return groups
