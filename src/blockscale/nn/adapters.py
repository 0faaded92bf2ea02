"""Layers of peft inside of a model: adapters, which are trained, and the layers that they adapt.

peft puts a layer of its own in the place of one that it adapts, which becomes its `base_layer`; the
adapters are its other children. A layer that is trained as a whole gets a copy for each adapter in
`modules_to_save`, beside the `original_module`. They are known by these names, so nothing is
imported.
"""

from __future__ import annotations

import re

from torch import nn

_INNER = re.compile(r"\.(base_layer|original_module)(?=\.|$)")


def adapted_name(name: str) -> str:
    """What a layer was called before it was adapted."""
    return _INNER.sub("", name)


def why_adapter(model: nn.Module, name: str) -> str | None:
    """Why a layer has to stay plain: it is an adapter, or one that reads its weight is around."""
    if adapter := find_adapter(model, name):
        return adapter
    around, _, child = name.rpartition(".")
    if child == "base_layer" and _reads_weight(model.get_submodule(around)):
        return "its weight is read by the adapter around it"
    return None


def find_adapter(model: nn.Module, name: str) -> str | None:
    """The adapter that a layer is, or is a part of; None where it is of none."""
    around, path = model, ""
    for child in name.split("."):
        children = around._modules
        if _adapts(around) and child != "base_layer":
            return f"an adapter of {path or type(model).__name__}"
        if "original_module" in children and child == "modules_to_save":
            return "an adapter: trained in the place of original_module"
        around = around.get_submodule(child)
        path = f"{path}.{child}" if path else child
    return None


def _adapts(module: nn.Module) -> bool:
    """All layers of peft say which of their children are adapters."""
    return "base_layer" in module._modules and hasattr(module, "adapter_layer_names")


def _reads_weight(wrapper: nn.Module) -> bool:
    """Adapters of parameters (of experts, say) add to them, and DoRA takes the norms of rows."""
    return hasattr(wrapper, "parameter_name") or bool(
        getattr(wrapper, "lora_magnitude_vector", None)
    )
