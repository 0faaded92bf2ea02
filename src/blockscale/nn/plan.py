"""What `quantize_` will do with each layer of a model, decided before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from blockscale import ops
from blockscale.formats import Format
from blockscale.layouts import canonical
from blockscale.nn.adapters import why_adapter
from blockscale.nn.fused import is_fused, read_fused
from blockscale.nn.hooks import why_not_carried
from blockscale.nn.packed import PackedModule, known_x_format
from blockscale.nn.selection import Formats


class Weight(NamedTuple):
    """A weight as a user thinks of it: that of a linear layer, or a fused one of experts."""

    name: str
    parts: tuple[Tensor, ...]  # gate and up are two; else one

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, n, k = self.parts[0].shape
        return (*lead, n * len(self.parts), k)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class Step(NamedTuple):
    """A layer, and a format for each of its weights or the reason why it is kept."""

    names: tuple[str, ...]  # every place it has in the model
    decision: tuple[Format, ...] | str
    tied_to: str = ""  # the embedding that has the same weight, and keeps it


def weights_of(name: str, module: nn.Module) -> list[Weight]:
    """Of an `nn.Linear` or of fused experts."""
    if isinstance(module, nn.Linear):
        return [Weight(name, (module.weight,))]
    fused = read_fused(module)
    if isinstance(fused, str):
        parameters = module.named_parameters(recurse=False)
        return [Weight(f"{name}.{key}", (each,)) for key, each in parameters if _is_weight(each)]
    return [
        Weight(f"{name}.gate_up_proj", (fused.gate, fused.up)),
        Weight(f"{name}.down_proj", (fused.down,)),
    ]


def _has_weights(module: nn.Module) -> bool:
    """Whether a user may expect it to be quantised; embeddings are looked up, not multiplied."""
    parameters = module.parameters(recurse=False)
    return not isinstance(module, nn.Embedding) and any(map(_is_weight, parameters))


def _is_weight(parameter: Tensor) -> bool:
    """A matrix, or those of several experts."""
    return parameter.dim() in (2, 3)


def make_plan(
    model: nn.Module,
    formats: Formats,
    select: Callable[[str, nn.Module], str],
    x_format: Format | str | None,
    *,
    head: bool = False,
) -> list[Step]:
    """A step for each layer, in the order of the model; an error where none would change it.

    head: an output head that is tied to an embedding may have a copy of the weight
    """
    places: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        layer = isinstance(module, (nn.Linear, PackedModule)) or is_fused(module)
        if layer or (name and _has_weights(module)):
            places.setdefault(id(module), []).append(name)
    if [""] in places.values():
        raise TypeError(
            "quantize_: the model is itself a layer, which cannot be swapped in place: use "
            "bs.nn.Linear.from_linear or bs.nn.Experts.from_fused"
        )
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    steps = []
    for names in places.values():
        module = model.get_submodule(names[0])
        tied_to = _tied_embedding(model, names[0], module, owners) if head else ""
        shared = {} if tied_to else owners
        reason = _refuses(model, names[0], module, shared) or select(names[0], module)
        decision = reason or _decide(names[0], module, formats, x_format)
        steps.append(Step(tuple(names), decision, tied_to))
    _check_useful(model, steps)
    return steps


def _tied_embedding(
    model: nn.Module, name: str, module: nn.Module, owners: dict[int, list[str]]
) -> str:
    """The embedding whose weight an output head multiplies by. Rows are looked up there one by one,
    and here all are read: the head can have a packed copy of its own."""
    if not isinstance(module, nn.Linear):
        return ""
    others = [owner for owner in owners.get(id(module.weight), []) if owner != name]
    if not all(isinstance(model.get_submodule(each), nn.Embedding) for each in others):
        return ""
    return others[0] if others else ""


def _refuses(
    model: nn.Module, name: str, module: nn.Module, owners: dict[int, list[str]]
) -> str | None:
    """Why a layer cannot be swapped, whatever the format."""
    if isinstance(module, PackedModule):
        return "quantised already"
    if reason := why_adapter(model, name):
        return reason
    if isinstance(module, nn.Linear):
        if type(module) is not nn.Linear:
            return f"{type(module).__name__} may not compute what nn.Linear does"
        if "weight" not in module._parameters:
            return (
                "its weight is computed by a hook (remove_weight_norm, prune.remove: make it final)"
            )
        around = model.get_submodule(name.rpartition(".")[0])
        if isinstance(around, nn.TransformerEncoderLayer):
            return "its weight is read by the layer around it, which has a path of its own"
    elif not is_fused(module):
        return f"{type(module).__name__} is no nn.Linear and no fused experts"
    elif isinstance(fused := read_fused(module), str):
        return fused
    if reason := why_not_carried(module):
        return reason
    for parameter in module.parameters(recurse=False):
        others = [owner for owner in owners.get(id(parameter), []) if owner != name]
        if parameter.dim() > 1 and others:
            return f"shares its weight with {others[0]}"
    return None


def _decide(
    name: str, module: nn.Module, formats: Formats, x_format: Format | str | None
) -> tuple[Format, ...] | str:
    chosen = []
    for weight in weights_of(name, module):
        format = formats.of(weight.name, name)
        if isinstance(format, str):
            return format
        part = weight.parts[0]
        if part.dtype not in ops.FLOAT_DTYPES:
            return f"its numbers are {part.dtype}"
        try:
            canonical(format).check(format, weight.shape)
            known_x_format(x_format, weight.shape[-1])
        except ValueError as error:
            return str(error)
        chosen.append(format)
    return tuple(chosen)


def _check_useful(model: nn.Module, steps: list[Step]) -> None:
    if any(not isinstance(step.decision, str) for step in steps):
        return
    if any(isinstance(model.get_submodule(step.names[0]), PackedModule) for step in steps):
        return  # a second call finds its work done
    kind = type(model).__name__
    if not steps:
        raise ValueError(f"quantize_: {kind} has no nn.Linear and no fused experts")
    listed = "\n".join(f"  {step.names[0]}: {step.decision}" for step in steps[:8])
    more = f"\n  and {len(steps) - 8} more" if len(steps) > 8 else ""
    raise ValueError(f"quantize_: every layer of {kind} would be kept:\n{listed}{more}")
