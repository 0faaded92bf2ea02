"""Which tensors of a checkpoint make up a layer of an engine's.

Engines name modules as the model of transformers does, up to renamed prefixes, and fuse some: their
`qkv_proj` is `q_proj`, `k_proj` and `v_proj` of most files, and a module of its own in others
(Phi-3). What is packed is read off the files, whatever config.json says of modules to leave alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from blockscale.checkpoint.stored import Stored, module_of

_NUMBER = re.compile(r"\.\d+(?=\.|$)")  # of a layer, or of an expert
WEIGHT = "weight"
INPUT_SCALE = "input_scale"


@dataclass(frozen=True)
class LinearSource:
    """The stored weights of one linear layer: of its members, or one for all of them."""

    weights: list[Stored]
    unused: list[Stored]  # scales of activations

    @property
    def is_packed(self) -> bool:
        return any(weight.format is not None for weight in self.weights)


class StoredLayers:
    """The tensors of a checkpoint by the engine's module that they belong to.

    rename   the name that the engine has for a module of the checkpoint
    """

    def __init__(self, tensors: Mapping[str, Stored], rename: Callable[[str], str]) -> None:
        self._modules: dict[str, dict[str, Stored]] = {}
        self._names: dict[str, str] = {}
        for stored in tensors.values():
            module, _, leaf = stored.name.rpartition(".")
            renamed = rename(module)
            self._modules.setdefault(renamed, {})[leaf] = stored
            self._names[stored.name] = f"{renamed}.{leaf}"
        self._packed = {
            _of_any_layer(module)
            for module, leaves in self._modules.items()
            if WEIGHT in leaves and leaves[WEIGHT].format is not None
        }

    def name_of(self, stored: Stored) -> str:
        """As the engine would say it."""
        return self._names[stored.name]

    def below(self, prefix: str) -> dict[str, Stored]:
        """Everything inside a module, by its name from there on."""
        return {
            f"{module}.{leaf}".removeprefix(f"{prefix}."): stored
            for module, leaves in self._modules.items()
            if module == prefix or module.startswith(f"{prefix}.")
            for leaf, stored in leaves.items()
        }

    def linear(self, prefix: str, members: Sequence[str]) -> LinearSource | None:
        """members: what the engine has fused into this layer. None: nothing of it is packed."""
        above = module_of(prefix)
        inside = [f"{above}.{member}" if above else member for member in members]
        for paths in (inside, [prefix]):
            found = [self._modules.get(path, {}) for path in paths]
            weights = [leaves[WEIGHT] for leaves in found if WEIGHT in leaves]
            if not any(weight.format is not None for weight in weights):
                continue
            if len(weights) != len(paths):
                names = [path for path, leaves in zip(paths, found, strict=True) if not leaves]
                raise ValueError(
                    f"{prefix} is made of {', '.join(paths)}, and the checkpoint has no "
                    f"{', '.join(names)}: fetch it again"
                )
            unused = [leaves[INPUT_SCALE] for leaves in found if INPUT_SCALE in leaves]
            return LinearSource(weights, unused)
        self._check_not_missing([*inside, prefix])
        return None

    def _check_not_missing(self, paths: Sequence[str]) -> None:
        """Engines leave a layer as its memory was where the file has nothing of it. That other
        layers of the stack are packed under such a name says that this one should be there."""
        if any(path in self._modules for path in paths):
            return
        missing = [path for path in paths if _of_any_layer(path) in self._packed]
        if missing:
            raise ValueError(
                f"the checkpoint has no {', '.join(missing)}, which it has for other layers: "
                "fetch it again"
            )


def _of_any_layer(module: str) -> str:
    return _NUMBER.sub(".*", module)
