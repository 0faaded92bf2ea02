"""What a conversion will do, decided from headers alone: units of work, files, and sizes."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from blockscale.checkpoint.checkpoint import Checkpoint
from blockscale.checkpoint.contents import describe
from blockscale.checkpoint.dialects import (
    Description,
    WritableDialect,
    default_dialect,
    writable,
)
from blockscale.checkpoint.dialects.blockscale import NAME as BLOCKSCALE
from blockscale.checkpoint.dialects.blockscale import stated_x_format
from blockscale.checkpoint.orientation import as_weights, as_written
from blockscale.checkpoint.save import SHARD_SIZE
from blockscale.checkpoint.select import KEEP, Choice, Rule, choose, kept_by_reason
from blockscale.checkpoint.shards import Outline, Shard, plan_shards
from blockscale.checkpoint.stored import Stored, module_of, outline
from blockscale.formats import Format
from blockscale.formats import format as find_format
from blockscale.nn.projections import check_shared, fused_groups
from blockscale.numerics import check_rule
from blockscale.tensor import QTensor


@dataclass(frozen=True)
class Settings:
    """What the user asked for."""

    format: Format
    rules: tuple[Rule, ...] = ()
    scale: str = "mse"
    dialect: str | None = None
    shard_size: int = SHARD_SIZE

    @property
    def formats(self) -> list[Format]:
        return [self.format, *(rule.format for rule in self.rules if rule.format)]

    def as_json(self) -> dict[str, Any]:
        return {
            "format": self.format.name,
            "layers": [f"{rule.pattern}={rule.format or KEEP}" for rule in self.rules],
            "scale": self.scale,
            "dialect": self.dialect,
            "shard_size": self.shard_size,
        }


@dataclass(frozen=True)
class Unit:
    """Tensors that are converted together, because they share a tensor scale; mostly one."""

    members: tuple[Stored, ...]
    format: Format | None
    outlines: Mapping[str, Outline]  # what is written for them
    as_it_is: bool  # copied without a look

    @property
    def nbytes(self) -> int:
        return sum(stored.nbytes for stored in self.members)


@dataclass(frozen=True)
class Plan:
    checkpoint: Checkpoint
    settings: Settings
    writer: WritableDialect
    choices: Mapping[str, Choice]
    units: list[Unit]
    shards: list[Shard]
    x_format: Format | str | None  # that the source states

    @cached_property
    def units_of(self) -> dict[str, list[Unit]]:
        """File -> its units, in order."""
        file_of = {part: shard.file for shard in self.shards for part in shard.outlines}
        found: dict[str, list[Unit]] = {shard.file: [] for shard in self.shards}
        for unit in self.units:
            found[file_of[next(iter(unit.outlines))]].append(unit)
        return found

    @cached_property
    def formats(self) -> dict[str, Format]:
        """Of the tensors that will be quantised."""
        return {name: c.format for name, c in self.choices.items() if c.format is not None}

    def describe(self) -> Description:
        tensors = self.checkpoint.tensors
        plain = {
            name: tensors[name].shape
            for name, choice in self.choices.items()
            if choice.format is None and not choice.dropped
        }
        return describe(self.writer, self.formats, plain, self.x_format)


def plan_conversion(source: str | Path, settings: Settings) -> Plan:
    """Open the source and decide everything. Nothing is written and no weight is read."""
    for format in settings.formats:
        check_rule(settings.scale, format)
    checkpoint = Checkpoint(source)
    config = checkpoint.files.config
    weights = as_weights(checkpoint.tensors, config)

    def choose_for(dialect: str) -> dict[str, Choice]:
        found = choose(weights, settings.format, settings.rules, writable(dialect), config)
        return _whole_experts(found, weights)

    dialect = settings.dialect or _default_dialect(choose_for, weights, config)
    writer, choices = writable(dialect), choose_for(dialect)
    quantized = {name for name, choice in choices.items() if choice.format is not None}
    if not quantized:
        listed = "".join(f"\n  {line}" for line in kept_by_reason(choices))
        raise ValueError(f"{source}: none of its {len(choices)} tensors would be quantised{listed}")
    checkpoint.tensors = as_written(checkpoint.tensors, weights, quantized)
    units = _units(checkpoint, choices, writer)
    shards = plan_shards([unit.outlines for unit in units], settings.shard_size)
    x_format = stated_x_format(checkpoint.files)
    return Plan(checkpoint, settings, writer, choices, units, shards, x_format)


def _whole_experts(
    choices: Mapping[str, Choice], weights: Mapping[str, Stored]
) -> dict[str, Choice]:
    """Fused experts are one layer: where one of their weights stays plain, all do."""
    plain = {
        _layer_of(name): name
        for name, choice in choices.items()
        if choice.format is None and len(weights[name].shape) == 3
    }
    whole = dict(choices)
    for name, choice in choices.items():
        stored, kept = weights[name], plain.get(_layer_of(name))
        if choice.format is not None and kept and stored.format is None and stored.shape[2:]:
            whole[name] = Choice(reason=f"one layer with {kept}, which is kept")
    return whole


def _layer_of(name: str) -> str:
    return module_of(name.removesuffix(".weight"))


def _default_dialect(
    choose_for: Callable[[str], Mapping[str, Choice]],
    weights: Mapping[str, Stored],
    config: Mapping[str, Any],
) -> str:
    """One that holds all that the blockscale dialect, which holds everything, would."""
    choices = choose_for(BLOCKSCALE)
    tensors = [(name, c.format, weights[name].shape) for name, c in choices.items() if c.format]
    quantized = {name for name, stored in weights.items() if stored.format is not None}
    return default_dialect(tensors, config.get("model_type", ""), quantized)


def parse_rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    """PATTERN=FORMAT, where FORMAT may be "keep"."""
    rules = []
    for text in texts:
        pattern, equals, name = text.rpartition("=")
        if not equals or not pattern:
            raise ValueError(
                f"--layers {text!r}: expected PATTERN=FORMAT, as in '*.down_proj=mxfp8'"
            )
        rules.append(Rule(pattern, None if name == KEEP else find_format(name)))
    return tuple(rules)


def _units(
    checkpoint: Checkpoint, choices: Mapping[str, Choice], writer: WritableDialect
) -> list[Unit]:
    """In the order of the source; fused projections move up to their first."""
    formats = {name: choice.format for name, choice in choices.items() if choice.format}
    groups = _groups(checkpoint, formats) if writer.SHARES_TENSOR_SCALE else [[n] for n in formats]
    groups += [[n] for n, c in choices.items() if c.format is None and not c.dropped]
    position = {name: index for index, name in enumerate(choices)}
    units, written = [], set[str]()
    for group in sorted(groups, key=lambda group: position[group[0]]):
        members = tuple(checkpoint.tensors[name] for name in group)
        format = choices[group[0]].format
        as_it_is = all(choices[name].as_it_is for name in group)
        unit = Unit(members, format, _outlines(members, format, writer, formats), as_it_is)
        if written & unit.outlines.keys():
            raise ValueError(f"two tensors would be written as {written & unit.outlines.keys()}")
        written |= unit.outlines.keys()
        units.append(unit)
    return units


def _groups(checkpoint: Checkpoint, formats: Mapping[str, Format]) -> list[list[str]]:
    """Tensors that must share a scale, together; those that already do, one by one."""
    done = []
    tensors = checkpoint.tensors
    for group in fused_groups(formats, {name: tensors[name].shape for name in formats}):
        copied = all(tensors[name].format == formats[name] for name in group)
        if copied and len(group) > 1:
            check_shared((name, _quantized(checkpoint, name)) for name in group)
        done += [[name] for name in group] if copied else [group]
    return done


def _quantized(checkpoint: Checkpoint, name: str) -> QTensor:
    value = checkpoint.read(name)  # mapped from its file: only what is looked at is really read
    if not isinstance(value, QTensor):
        raise TypeError(f"{name} is not quantised")
    return value


def _outlines(
    members: Sequence[Stored],
    format: Format | None,
    writer: WritableDialect,
    quantized: Container[str],
) -> dict[str, Outline]:
    """What the writer makes of tensors without bytes."""
    outlines = {}
    for stored in members:
        value = (
            torch.empty(stored.shape, dtype=stored.dtype, device="meta")
            if format is None
            else outline(format, stored.shape)
        )
        parts = writer.split(stored.name, value, quantized)
        outlines.update({part: Outline.of(tensor) for part, tensor in parts.items()})
    return outlines
