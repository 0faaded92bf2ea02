"""Which stored tensors make up this rank's gate, up and down.

Files have experts fused, apart, or one by one:

    gate_up_proj, down_proj                      [e, n, k], gate rows before up rows
    gate, up, down                               [e, n, k]
    7.gate_proj.weight, 7.up_proj.weight, ...    [n, k]; w1, w3 and w2 in some models

each with biases beside it, or none. Ranks share whole experts, or the intermediate features of
every expert: rows of gate and up, columns of down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blockscale.checkpoint.stored import Stored
from blockscale.integrations.engines.intake import Cut, Intake, Piece
from blockscale.tensor import part_range

GATE, UP, DOWN = "gate", "up", "down"
ROLES = (GATE, UP, DOWN)
_ONE = re.compile(r"(?P<number>\d+)\.(?P<projection>\w+)\.(?P<leaf>weight|bias|input_scale)")
_FUSED = {
    "gate_up_proj": (GATE, UP),
    "down_proj": (DOWN,),
    **{role: (role,) for role in ROLES},
}
_BIAS = "_bias"


@dataclass(frozen=True)
class Ranks:
    """What of the experts this rank has.

    experts      their numbers, in its order
    rank, size   among the ranks that share the features of each expert
    """

    experts: Sequence[int]
    total: int
    rank: int = 0
    size: int = 1

    def cut(
        self, stored: Stored, roles: tuple[str, ...], *, one: bool, is_bias: bool
    ) -> Cut | None:
        """This rank's part of a tensor of all experts, or of one."""
        if self.size > 1:
            if roles == (DOWN,) and is_bias:
                return None
            axis = len(stored.shape) - 1 if roles == (DOWN,) else int(not one)
            return Cut(axis, self._features(stored, axis, len(roles)))
        if one or list(self.experts) == list(range(self.total)):
            return None
        return Cut(0, tuple((number, number + 1) for number in self.experts))

    def _features(self, stored: Stored, axis: int, pieces: int) -> tuple[tuple[int, int], ...]:
        """Of each of the pieces that lie one after the other along the axis."""
        length = stored.shape[axis] // pieces
        shape = (*stored.shape[:axis], length, *stored.shape[axis + 1 :])
        try:
            start, mine = part_range(shape, axis, self.rank, self.size, stored.format)
        except ValueError as error:
            raise ValueError(f"{stored.name}: {error}") from error
        return tuple((length * i + start, length * i + start + mine) for i in range(pieces))


@dataclass
class ExpertPieces:
    """On their way in, by role: one tensor of all experts, or one of each in this rank's order.

    A tensor of gate and up stands under both roles, "gate" and "up".
    """

    weights: dict[str, list[Piece]] = field(default_factory=dict)
    biases: dict[str, list[Piece]] = field(default_factory=dict)

    def every(self) -> list[Piece]:
        lists = [*self.weights.values(), *self.biases.values()]
        return list({id(piece): piece for pieces in lists for piece in pieces}.values())


def is_packed(inside: Mapping[str, Stored]) -> bool:
    return any(stored.format is not None for stored in inside.values())


def want_experts(
    intake: Intake, inside: Mapping[str, Stored], projections: Mapping[str, str], ranks: Ranks
) -> ExpertPieces:
    """Ask for what this rank needs of the tensors inside a module of experts.

    projections   of one expert, by name: {"gate_proj": "gate", "up_proj": "up", ...}
    """
    found = ExpertPieces()
    places = {number: place for place, number in enumerate(ranks.experts)}
    ones: dict[tuple[str, str], dict[int, Stored]] = {}
    for name, stored in inside.items():
        one = _ONE.fullmatch(name)
        if one is not None and one["projection"] in projections:
            number, leaf = int(one["number"]), one["leaf"]
            if number in places and leaf != "input_scale":
                role = projections[one["projection"]]
                ones.setdefault((role, leaf), {})[places[number]] = stored
            else:
                intake.ignore(stored)
        elif name.removesuffix(_BIAS) in _FUSED:
            roles, is_bias = _FUSED[name.removesuffix(_BIAS)], name.endswith(_BIAS)
            piece = intake.want(stored, ranks.cut(stored, roles, one=False, is_bias=is_bias))
            for role in roles:
                (found.biases if is_bias else found.weights)[role] = [piece]
        elif stored.format is not None:
            raise ValueError(
                f"{stored.name} is packed, and is no projection of experts: keep it unquantised"
            )
    for (role, leaf), by_place in ones.items():
        is_bias = leaf == "bias"
        (found.biases if is_bias else found.weights)[role] = [
            intake.want(each, ranks.cut(each, (role,), one=True, is_bias=is_bias))
            for _, each in sorted(by_place.items())
        ]
        if len(by_place) != len(ranks.experts):
            raise ValueError(
                f"{len(ranks.experts)} experts are needed here, and the checkpoint has the {role} "
                f"{leaf} of {len(by_place)}, such as {next(iter(by_place.values())).name}: does "
                "its config.json belong to these files?"
            )
    missing = [role for role in ROLES if role not in found.weights]
    if missing:
        raise ValueError(
            f"the experts of {next(iter(inside.values())).name} have no {missing[0]}: fetch the "
            "checkpoint again"
        )
    return found
