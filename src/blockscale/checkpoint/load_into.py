"""`load_into`: the weights of a checkpoint into a model, quantised ones as they are.

Linear layers become `bs.nn.Linear`, fused experts become `bs.nn.Experts`. Checkpoints name experts
in three ways, and all are read: fused (`experts.gate_up_proj`, `experts.down_proj`), one by one
(`experts.7.up_proj.weight`), and as `bs.nn.Experts` saves itself (`experts.gate`). Experts that are
linear layers in the model too, in an `nn.ModuleList`, are loaded as such.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from blockscale.checkpoint.checkpoint import Checkpoint
from blockscale.checkpoint.dialects.blockscale import stated_x_format
from blockscale.formats import Format
from blockscale.nn import Experts, Linear
from blockscale.nn.fused import is_fused, read_fused
from blockscale.nn.packed import PackedModule
from blockscale.nn.saved_config import describe_in_config
from blockscale.nn.sharding import Sharding
from blockscale.numerics import Activation
from blockscale.tensor import QTensor

logger = logging.getLogger(__name__)

_ONE_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
EXPERT_ROLES = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"} | {
    "w1": "gate",
    "w3": "up",
    "w2": "down",
}
# Of quantised queries and key-value caches, as compressed-tensors and ModelOpt call them.
_CACHE_SCALES = {f"{x}_{role}" for x in "qkv" for role in ("scale", "zero_point")}
_CACHE_SCALES |= {"k_bias", "v_bias"}  # of ModelOpt's NVFP4_AFFINE
_MOST_NAMES = 4


def load_into(model: nn.Module, path: str | Path) -> None:
    """Load a checkpoint; its quantised layers take the place of the model's.

    The names in the checkpoint must be those of the model. Layers on the meta device are filled
    too, so a large model can be built there first. The model is changed only if everything fits.
    Scales of quantised attention and of its key-value cache are not used, which a warning says. A
    layer that has an x_format keeps it; others get the one that the checkpoint states, if any.
    """
    checkpoint = Checkpoint(path)
    tensors = {name: checkpoint.read(name) for name in checkpoint.tensors}
    plain = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
    quantized = {name: value for name, value in tensors.items() if isinstance(value, QTensor)}
    swaps = make_twins(model, quantized, plain, stated_x_format(checkpoint.files))
    _drop_cache_scales(model, plain)
    state = _plain_state(model, plain, swaps)
    for name, twin in swaps.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, twin)
    on_meta = any(value.is_meta for value in model.state_dict().values())
    model.load_state_dict(state, strict=False, assign=on_meta)
    if swaps:
        describe_in_config(model)


def make_twins(
    model: nn.Module,
    quantized: dict[str, QTensor],
    plain: dict[str, Tensor],
    x_format: Format | str | None = None,
    shardings: Mapping[str, Sharding] | None = None,
) -> dict[str, Linear | Experts]:
    """For each layer of the model that has quantised weights, the module to take its place.

    What belongs to these layers is taken out of both dictionaries.

    x_format    of layers that have none
    shardings   by role, where the quantised tensors are this rank's parts of one layer's weights
    """
    shared = shardings or {}
    modules = dict(model.named_modules())
    twins: dict[str, Linear | Experts] = {}
    for module, parts in _experts(modules, quantized, plain).items():
        twins[module] = _make_experts(modules, module, parts, plain, x_format, shared)
    for name in list(quantized):
        linear = _make_linear(modules, name, quantized.pop(name), plain, x_format, shared)
        twins[name.removesuffix(".weight")] = linear
    return twins


# --- linear layers ---


def _make_linear(
    modules: Mapping[str, nn.Module],
    name: str,
    q: QTensor,
    plain: dict[str, Tensor],
    x_format: Format | str | None,
    shardings: Mapping[str, Sharding],
) -> Linear:
    module = name.removesuffix(".weight")
    there = modules.get(module)
    if not name.endswith(".weight") or not isinstance(there, (nn.Linear, Linear)):
        kind = type(there).__name__ if there is not None else "nothing"
        raise ValueError(f"load_into: {name} is quantised, but the model has {kind} of this name")
    sharding = shardings.get("weight")
    whole = (there.out_features, there.in_features)
    if q.shape != (whole if sharding is None else sharding.local_shape()):
        raise ValueError(
            f"load_into: {name} is {list(q.shape)}, the model's layer is {list(whole)}"
        )
    bias = plain.pop(f"{module}.bias", None)
    if (bias is None) != (there.bias is None):
        raise ValueError(f"load_into: {module} has a bias only in one of model and checkpoint")
    plain.pop(f"{module}.input_scale", None)  # activations are scaled row by row here
    if bias is not None and there.bias is not None:
        bias = _like(bias, there.bias)
    q = q.to(_device(there))
    x_format = _x_format_of(there) or x_format
    return Linear.from_qtensor(q, bias, x_format, sharding=sharding).train(there.training)


# --- experts ---


def _experts(
    modules: Mapping[str, nn.Module], quantized: dict[str, QTensor], plain: dict[str, Tensor]
) -> dict[str, dict[str, QTensor]]:
    """Module -> its gate, up and down, which are taken out of `quantized`."""
    single: dict[tuple[str, str], dict[int, QTensor]] = {}
    found: dict[str, dict[str, QTensor]] = {}
    for name in list(quantized):
        module, _, leaf = name.rpartition(".")
        if isinstance(modules.get(module), (nn.Linear, Linear)):
            continue
        if match := _ONE_EXPERT.fullmatch(name):
            module, number, projection = match.groups()
            role = EXPERT_ROLES.get(projection, projection)
            single.setdefault((module, role), {})[int(number)] = quantized.pop(name)
            plain.pop(f"{module}.{number}.{projection}.input_scale", None)
        elif len(quantized[name].shape) == 3:
            parts = found.setdefault(module, {})
            if leaf == "gate_up_proj":
                gate_up = quantized.pop(name)
                half = gate_up.shape[-2] // 2
                parts |= {"gate": gate_up[:, :half], "up": gate_up[:, half:]}
            else:
                parts[EXPERT_ROLES.get(leaf, leaf)] = quantized.pop(name)
    for (module, role), experts in single.items():
        found.setdefault(module, {})[role] = stack_experts(f"{module}.*.{role}", experts)
    return found


def stack_experts(name: str, experts: Mapping[int, QTensor]) -> QTensor:
    """Matrices [n, k] -> [e, n, k], each with its own tensor scale."""
    ordered = [experts[number] for number in sorted(experts)]
    first = ordered[0]
    if sorted(experts) != list(range(len(experts))):
        raise ValueError(f"{name}: some of the experts are missing")
    if any(q.format != first.format or q.shape != first.shape for q in ordered):
        raise ValueError(f"{name}: the experts differ in format or shape")
    scales = [q.tensor_scale for q in ordered if q.tensor_scale is not None]
    return QTensor.from_storage(
        first.format,
        torch.stack([q.codes for q in ordered]),
        torch.stack([q.scale for q in ordered]),
        tensor_scale=torch.stack(scales) if scales else None,
        codebook=first.codebook,
    )


def _make_experts(
    modules: Mapping[str, nn.Module],
    name: str,
    parts: Mapping[str, QTensor],
    plain: dict[str, Tensor],
    x_format: Format | str | None,
    shardings: Mapping[str, Sharding],
) -> Experts:
    there = modules.get(name)
    if there is None or not (isinstance(there, Experts) or is_fused(there)):
        raise ValueError(f"load_into: {name} are quantised experts, and the model has none there")
    activation, stacked = _way_of(name, there)
    if parts.keys() != {"gate", "up", "down"}:
        raise ValueError(f"load_into: {name} needs gate, up and down, got {', '.join(parts)}")
    device = _device(there)
    dtype = next((parameter.dtype for parameter in there.parameters()), None)
    gate_bias, up_bias, down_bias = _biases(name, plain, device, dtype)
    return Experts.from_qtensors(
        parts["gate"].to(device),
        parts["up"].to(device),
        parts["down"].to(device),
        activation=activation,
        gate_bias=gate_bias,
        up_bias=up_bias,
        down_bias=down_bias,
        x_format=_x_format_of(there) or x_format,
        stacked=stacked,
        shardings=shardings,
    ).train(there.training)


def _way_of(name: str, there: nn.Module) -> tuple[str | Activation, bool]:
    """The activation of experts, and whether they are called with stacked rows."""
    if isinstance(there, Experts):
        return there.activation, there.stacked
    fused = read_fused(there)
    if isinstance(fused, str):
        raise TypeError(
            f"load_into: {name} are quantised, and {fused}: keep them plain, with "
            "`blockscale quantize --layers '*.experts*=keep'`"
        )
    return fused.activation, fused.stacked


def _biases(
    name: str, plain: dict[str, Tensor], device: torch.device, dtype: torch.dtype | None
) -> list[Tensor | None]:
    """Of gate, up and down, in the dtype of the model; a fused one has all gates before all ups."""
    fused = plain.pop(f"{name}.gate_up_proj_bias", None)
    gate, up = (None, None) if fused is None else fused.chunk(2, -1)
    found = (
        plain.pop(f"{name}.gate_bias", gate),
        plain.pop(f"{name}.up_bias", up),
        plain.pop(f"{name}.down_bias", plain.pop(f"{name}.down_proj_bias", None)),
    )
    return [None if bias is None else bias.to(device, dtype) for bias in found]


# --- everything else ---


def _drop_cache_scales(model: nn.Module, plain: dict[str, Tensor]) -> None:
    """Caches are not quantised here; a model that has such a tensor of its own gets it."""
    wanted = model.state_dict().keys()
    unused = [name for name in plain if name.rpartition(".")[2] in _CACHE_SCALES]
    unused = [name for name in unused if name not in wanted]
    for name in unused:
        del plain[name]
    if unused:
        logger.warning("not used: %s", _some(unused))


def _plain_state(
    model: nn.Module, plain: Mapping[str, Tensor], swaps: Mapping[str, nn.Module]
) -> dict[str, Tensor]:
    """The plain tensors in the dtypes of the model; what is missing or left over is an error."""
    inside = tuple(f"{name}." for name in swaps)
    wanted = {
        name: value
        for name, value in model.state_dict(keep_vars=True).items()
        if not name.startswith(inside)
    }
    left_over = [name for name in plain if name not in wanted]
    if left_over:
        raise ValueError(f"load_into: the model has no {_some(left_over)}")
    stored = {id(wanted[name]): name for name in plain}  # a tied weight is stored once
    missing = [name for name, value in wanted.items() if id(value) not in stored]
    if missing:
        raise ValueError(f"load_into: the checkpoint has no {_some(missing)}")
    for name, value in plain.items():
        if value.shape != wanted[name].shape:
            raise ValueError(
                f"load_into: {name} is {list(value.shape)}, the model's is "
                f"{list(wanted[name].shape)}"
            )
    loaded = {name: _like(value, wanted[name]) for name, value in plain.items()}
    return {name: loaded[stored[id(value)]] for name, value in wanted.items()}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _like(value: Tensor, wanted: Tensor) -> Tensor:
    """In the dtype and on the device of the model, and a parameter where that is one."""
    moved = value.to(wanted.dtype).to(_real(wanted.device))
    return nn.Parameter(moved, wanted.requires_grad) if isinstance(wanted, nn.Parameter) else moved


def _x_format_of(module: nn.Module) -> Format | str | None:
    return module.x_format if isinstance(module, PackedModule) else None


def _device(module: nn.Module) -> torch.device:
    first = next(iter(module.state_dict().values()), torch.empty(0))
    return _real(first.device)


def _real(device: torch.device) -> torch.device:
    """Weights of a model on the meta device are loaded on the CPU."""
    return torch.device("cpu") if device.type == "meta" else device
