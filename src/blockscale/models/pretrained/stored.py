"""Weights that are quantised in the checkpoint.

transformers loads tensors by name and casts them; packed weights are several tensors each, under
names and in conventions that differ from dialect to dialect. `blockscale.checkpoint` reads them
all, so they are kept out of transformers' way: before it loads, `Room` takes the place of every
layer whose weights are packed; transformers loads everything else, and puts the rooms where its
device map wants the layers; then the layers are read into them, one after the other.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming

from blockscale.checkpoint import Checkpoint
from blockscale.checkpoint.load_into import make_twins
from blockscale.formats import Format
from blockscale.models.pretrained.placements import (
    Shardings,
    layer_shardings,
    ranks_of,
)
from blockscale.models.pretrained.stored_parts import read_part, roles_of
from blockscale.nn.fused import is_fused
from blockscale.tensor import QTensor

logger = logging.getLogger(__name__)


class Room(nn.Module):
    """On the device of the layer that will take its place. It has no state, so nothing is missing.

    nbytes    as large as that layer, where transformers divides layers among devices by size
    layer     what is there until then. transformers, which distributes rooms, asks for the features
              of linear layers, for the number of experts, and for the names of parameters, of which
              a user's plan may speak
    """

    room: Tensor

    def __init__(self, nbytes: int, layer: nn.Module) -> None:
        super().__init__()
        empty = torch.empty(nbytes, dtype=torch.uint8, device="meta")
        self.register_buffer("room", empty, persistent=False)
        self.in_features = self.out_features = 0
        if isinstance(layer, nn.Linear):
            self.in_features, self.out_features = layer.in_features, layer.out_features
        self.num_experts = getattr(layer, "num_experts", 0)
        for name in layer._parameters:
            self.add_module(name, Room(0, nn.Module()))


@dataclass
class Place:
    """A layer of the model as it was built, on the meta device, and the tensors that fill it."""

    layer: nn.Module
    tensors: dict[str, str] = field(default_factory=dict)  # name in the model -> in the checkpoint


class StoredWeights:
    """The packed layers of one checkpoint, on their way into one model."""

    def __init__(self, model: Any, checkpoint_files: Iterable[str]) -> None:
        files = [Path(each) for each in checkpoint_files]
        folder = files[0].parent
        # Those of which transformers loads the rest: of two variants in a folder, say.
        self.checkpoint = Checkpoint(folder, [file.name for file in files])
        self.places = _find_places(model, self.checkpoint)
        if not self.places:
            raise ValueError(
                f"{folder}: config.json says that weights are quantised, but no layer of "
                f"{type(model).__name__} has any"
            )

    def make_room(self, model: Any, device_map: Any = None) -> None:
        """Before transformers loads the rest.

        Rooms are as large as their layers where a device map is made by size, such as "auto". With
        tensor parallelism a rank would have bytes on its device that it never needs.
        """
        stored = self.checkpoint.tensors
        for path, place in self.places.items():
            nbytes = sum(stored[name].nbytes for name in place.tensors.values())
            sized = nbytes if isinstance(device_map, str) else 0
            model.set_submodule(path, Room(sized, place.layer))
        # What a layer will read itself is no surprise to anyone.
        model._keys_to_ignore_on_load_unexpected = {
            *(model._keys_to_ignore_on_load_unexpected or ()),
            *_patterns(self.places, model.base_model_prefix),
        }

    def fill(self, model: Any, x_format: Format | str | None) -> None:
        """When it has."""
        ignored: list[str] = []
        ranks = ranks_of(model)
        for path, place in self.places.items():
            device = model.get_submodule(path).room.device
            dtype = next(place.layer.parameters()).dtype
            shardings: Shardings = {}
            if ranks is not None:
                ranks.distribute(path, place.layer)
                shardings = self._shardings(path, place)
            quantized, plain = self._read(place, shardings)
            model.set_submodule(path, place.layer)
            twin = make_twins(model, quantized, plain, x_format, shardings)[path]
            twin._apply(partial(_copied, device)).to(dtype)
            if ranks is not None:
                ranks.install(path, twin)
            model.set_submodule(path, twin.train(model.training))
            ignored += plain
        if ignored:
            logger.warning("not used: %s", ", ".join(ignored))
        logger.info("blockscale loaded %s", self.describe())

    def describe(self) -> str:
        """As in "14 weights of modelopt, kept packed: 14 nvfp4"."""
        dialect, stored = self.checkpoint.dialect, self.checkpoint.tensors
        names = [name for place in self.places.values() for name in place.tensors.values()]
        formats = Counter(str(stored[name].format) for name in names if stored[name].format)
        counts = ", ".join(f"{count} {format}" for format, count in formats.items())
        kind = dialect.NAME if dialect else "no dialect"
        return f"{formats.total()} weights of {kind}, kept packed: {counts}"

    def _shardings(self, path: str, place: Place) -> Shardings:
        stored = {name: self.checkpoint.tensors[each] for name, each in place.tensors.items()}
        formats: dict[str, Format] = {}
        for name, each in stored.items():
            if each.format is not None:
                formats |= dict.fromkeys(roles_of(name, place.layer), each.format)
        return layer_shardings(path, place.layer, formats)

    def _read(
        self, place: Place, shardings: Shardings
    ) -> tuple[dict[str, QTensor], dict[str, Tensor]]:
        """This rank's part of quantised tensors, and plain ones, by their names in the model."""
        quantized: dict[str, QTensor] = {}
        plain: dict[str, Tensor] = {}
        for name, stored in place.tensors.items():
            found = read_part(self.checkpoint, stored, name, place.layer, shardings)
            if found is None:
                continue
            mine, value = found
            if isinstance(value, QTensor):
                quantized[mine] = value
            else:
                plain[mine] = value
        return quantized, plain


def _copied(device: torch.device, part: Tensor) -> Tensor:
    """Files are mapped into memory; a copy does not mind if its file is written anew."""
    return part.to(device, copy=True)


def _find_places(model: Any, checkpoint: Checkpoint) -> dict[str, Place]:
    """The layers that have quantised weights, with all their tensors."""
    layers = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) or is_fused(module)
    }
    wanted = model.state_dict().keys()
    places = {path: Place(layer) for path, layer in layers.items()}
    packed = set()
    transforms = get_model_conversion_mapping(model)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    for stored in checkpoint.tensors.values():
        names = list(_model_names(stored.name, renamings, model.base_model_prefix))
        found = next(((path, n) for n in names for path in _around(n) if path in layers), None)
        if found is not None:
            path, name = found
            places[path].tensors[name] = stored.name
            if stored.format is not None:
                packed.add(path)
        elif stored.format is not None and any(name in wanted for name in names):
            raise ValueError(
                f"{stored.name} is {stored.format} in the checkpoint, and the layer that wants it "
                f"in {type(model).__name__} is no nn.Linear and no fused experts"
            )
    return {path: place for path, place in places.items() if path in packed}


def _model_names(name: str, renamings: list[Any], prefix: str) -> Iterator[str]:
    """What a tensor of a checkpoint may be called in a model, as transformers sees it.

    Checkpoints keep the names of older versions, and a model with a head has its layers below a
    prefix which the model without it lacks.
    """
    renamed = name
    for renaming in renamings:
        renamed, _ = renaming.rename_source_key(renamed)
    for each in dict.fromkeys((renamed, name)):
        yield each
        if prefix:
            yield f"{prefix}.{each}"
            yield each.removeprefix(f"{prefix}.")


def _around(name: str) -> Iterator[str]:
    """The modules around a tensor, inner first: "a.b.weight" -> "a.b", "a"."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _patterns(paths: Iterable[str], prefix: str) -> set[str]:
    """Regular expressions for everything inside; the layers of a stack share one."""
    optional = rf"^(?:{re.escape(prefix)}\.)?" if prefix else "^"
    return {
        optional + re.sub(r"\d+", r"\\d+", re.escape(path.removeprefix(f"{prefix}."))) + r"\."
        for path in paths
    }
