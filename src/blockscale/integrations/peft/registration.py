"""How peft comes to know `blockscale.nn.Linear`, and forgets it.

peft makes adapters in `LoraModel._create_new_module`, which knows the classes of layers by name,
and finds those of "all-linear" by `torch.nn.Linear`. It lets others register classes with one
config at a time only, so both functions are wrapped: they answer for layers of this library, and
leave every other one to peft. `unregister` puts peft's own back.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any

from peft import LoraConfig
from peft.tuners import tuners_utils
from peft.tuners.lora.model import LoraModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from blockscale.integrations.peft.layer import LoraLinear
from blockscale.nn import Linear

_ALL = "_maybe_include_all_linear_layers"
_create, _include_all = LoraModel._create_new_module, getattr(tuners_utils, _ALL)


def register() -> None:
    """Importing the package does this; a second time changes nothing."""
    LoraModel._create_new_module = staticmethod(_create_here)
    setattr(tuners_utils, _ALL, _include_all_here)


def unregister() -> None:
    """As before the import. Models that have adapters keep them."""
    LoraModel._create_new_module = staticmethod(_create)
    setattr(tuners_utils, _ALL, _include_all)


@wraps(_create)
def _create_here(lora_config: Any, adapter_name: str, target: nn.Module, **options: Any) -> Any:
    base = target.get_base_layer() if isinstance(target, BaseTunerLayer) else target
    if isinstance(base, Linear):
        return LoraLinear(target, adapter_name, config=lora_config, **options)
    return _create(lora_config, adapter_name, target, **options)


@wraps(_include_all)
def _include_all_here(config: Any, model: nn.Module) -> Any:
    asked = getattr(config, "target_modules", None)
    config = _include_all(config, model)
    if isinstance(config, LoraConfig) and isinstance(asked, str) and config.target_modules != asked:
        config.target_modules |= set(_packed_layers(model))
    return config


def _packed_layers(model: nn.Module) -> Iterator[str]:
    """But the head of a language model, and what has an adapter already: as peft does."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    adapted = tuple(
        f"{name}." for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)
    )
    for name, module in model.named_modules():
        if isinstance(module, Linear) and module is not head and not name.startswith(adapted):
            yield name
