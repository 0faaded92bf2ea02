"""Which part of a stored tensor a rank reads, by its name and by how ranks share its layer.

Checkpoints have experts fused (`gate_up_proj`, `down_proj`), one by one (`experts.7.up_proj`), or
apart (`gate`, `up`, `down`); see `blockscale.checkpoint.load_into`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

from blockscale.checkpoint import Checkpoint
from blockscale.checkpoint.load_into import EXPERT_ROLES
from blockscale.nn.sharding import Sharding
from blockscale.tensor import QTensor

_ONE_EXPERT = re.compile(r"(?P<before>.*\.experts)\.(?P<number>\d+)\.(?P<leaf>\w+\.\w+)")


def read_part(
    checkpoint: Checkpoint,
    stored: str,
    name: str,
    layer: nn.Module,
    shardings: Mapping[str, Sharding],
) -> tuple[str, QTensor | Tensor] | None:
    """A tensor of a layer as this rank needs it, with its name among this rank's experts.

    None where it is another rank's. What is not packed, such as a bias, comes whole: whoever needs
    a part of it cuts it.
    """
    mine = _name_here(name, shardings)
    if mine is None:
        return None
    kind = checkpoint.tensors[stored]
    sharding = shardings.get(roles_of(name, layer)[0])
    if sharding is None or kind.format is None:
        return mine, checkpoint.read(stored)
    # One expert of many has no axis for them.
    axis = sharding.axis - (len(sharding.shape) - len(kind.shape))
    if axis < 0:
        return mine, checkpoint.read(stored)
    rank, ranks = sharding.mesh.get_local_rank(), sharding.mesh.size()
    pieces = 2 if axis == 1 and name.endswith(".gate_up_proj") else 1
    return mine, checkpoint.read_shard(stored, axis, rank, ranks, pieces=pieces)


def roles_of(name: str, layer: nn.Module) -> tuple[str, ...]:
    """Which of a layer's weights a tensor holds: "weight" of a linear one, or of experts. Experts
    in a list have linear layers, under the names that fused ones have in files."""
    if isinstance(layer, nn.Linear):
        return ("weight",)
    *_, module, leaf = f".{name}".split(".")
    if leaf == "gate_up_proj":
        return "gate", "up"
    role = EXPERT_ROLES.get(leaf, leaf)
    if leaf == "weight" and _ONE_EXPERT.fullmatch(name):
        role = EXPERT_ROLES.get(module, module)
    return (role,)


def _name_here(name: str, shardings: Mapping[str, Sharding]) -> str | None:
    """With the number that an expert has among this rank's; None of another rank's expert."""
    match, sharding = _ONE_EXPERT.fullmatch(name), shardings.get("gate")
    if match is None or sharding is None or sharding.axis > 0:
        return name
    start, length = sharding.local_range()
    number = int(match["number"]) - start
    return f"{match['before']}.{number}.{match['leaf']}" if 0 <= number < length else None
