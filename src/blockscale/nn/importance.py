"""What an error in each column of a weight costs: the mean square of the inputs that meet it.

The error of a product is the error of the weight times the input, so where inputs are large, errors
should be small. Weighing squared errors that way while block scales are searched costs nothing at
inference: same format, same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from blockscale.nn.fused import is_fused, read_fused
from blockscale.nn.moments import watching
from blockscale.nn.plan import Step, weights_of
from blockscale.nn.random_ids import LENGTH, WINDOWS, run_on_random_ids, why_not_random_ids
from blockscale.nn.selection import Where, selector
from blockscale.nn.widened import widened

RANDOM = "random"
Importance = str | Mapping[str, Tensor] | Callable[[nn.Module], object] | None


class Found(NamedTuple):
    """Importance by the names of weights, and where it is from, for the report."""

    by_name: Mapping[str, Tensor]
    origin: str


def measure_importance(
    model: nn.Module,
    run: Callable[[nn.Module], object] | None = None,
    where: Where = None,
    progress: bool | None = None,
) -> dict[str, Tensor]:
    """Mean squares of the inputs of linear layers and of fused experts, by name.

    run    calls the model on batches; by default, on random token ids. Gradients are off, and the
           model is in evaluation mode meanwhile
    where  which layers, as in `quantize_`
    progress  a bar on stderr, without `run`; None: where that is a terminal

    The result is what `quantize_` takes as `importance`: float32 [k], and [experts, k] for the
    second weight of experts. Layers that nothing reached are left out.
    """
    refuses = selector(where)
    modules = {
        name: module
        for name, module in model.named_modules()
        if (isinstance(module, nn.Linear) or _is_readable(module)) and not refuses(name, module)
    }
    if run is None and (reason := why_not_random_ids(model)):
        raise ValueError(f"measure_importance: {reason}: pass a function that runs the model")
    return _measure(model, modules, run, progress)


def _is_readable(module: nn.Module) -> bool:
    return is_fused(module) and not isinstance(read_fused(module), str)


def find_importance(
    model: nn.Module,
    given: Importance,
    scale: str,
    plan: Sequence[Step],
    progress: bool | None,
) -> Found:
    """What `quantize_` was given, measured where it has to be."""
    if given is not None and given != RANDOM:
        _check_given(given, scale)
    if given is None or scale != "mse":
        return Found({}, "importance=None" if scale == "mse" else "")
    if isinstance(given, Mapping):
        _check_names(model, given, plan)
        return Found(_by_first_name(model, given, plan), "as given")
    modules = {
        names[0]: model.get_submodule(names[0])
        for names, decision, _ in plan
        if not isinstance(decision, str)
    }
    if not modules:
        return Found({}, "")
    if callable(given):
        return Found(_measure(model, modules, given), "measured on inputs that were given")
    reason = why_not_random_ids(model)
    if reason:
        return Found({}, reason)
    found = _measure(model, modules, None, progress)
    device = model.get_input_embeddings().weight.device  # type: ignore[operator]
    return Found(found, f"measured on {WINDOWS * LENGTH:,} random token ids, on {device}")


def _measure(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    run: Callable[[nn.Module], object] | None,
    progress: bool | None = False,
) -> dict[str, Tensor]:
    with torch.no_grad(), _evaluating(model), widened(), watching(modules) as moments:
        if run is None:
            run_on_random_ids(model, modules.values(), progress)
        else:
            run(model)
    found = moments.means()
    for name, values in found.items():
        check_numbers("measured", name, values)
    return found


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout; afterwards each module is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _check_given(given: Importance, scale: str) -> None:
    if isinstance(given, str) or not (isinstance(given, Mapping) or callable(given)):
        raise TypeError(
            f"quantize_: importance must be 'random', None, tensors by name or a function of the "
            f"model, got {given!r}"
        )
    if scale != "mse":
        raise ValueError(
            f"quantize_: importance weighs the errors that scale='mse' searches, and scale is "
            f"{scale!r}: leave one of them out"
        )


def _check_names(model: nn.Module, given: Mapping[str, Tensor], plan: Sequence[Step]) -> None:
    """Every name is that of a weight, kept or not, and fits its shape."""
    weights = {
        weight.name: weight
        for names, _, _ in plan
        for name in names
        for weight in weights_of(name, model.get_submodule(name))
    }
    for name, values in given.items():
        if name not in weights:
            raise ValueError(f"quantize_: importance has {name!r}, and no weight is called so")
        check_numbers("quantize_", name, values)
        *lead, _, k = weights[name].shape
        if list(values.shape) not in ([k], [*lead, k]):
            raise ValueError(
                f"quantize_: importance of {name} must be {[k]}"
                f"{f' or {[*lead, k]}' if lead else ''}, got {list(values.shape)}"
            )


def _by_first_name(
    model: nn.Module, given: Mapping[str, Tensor], plan: Sequence[Step]
) -> dict[str, Tensor]:
    """A layer in several places is quantised by the name of the first."""
    found = dict(given)
    for names, _, _ in plan:
        module = model.get_submodule(names[0])
        for name in names[1:]:
            pairs = zip(weights_of(names[0], module), weights_of(name, module), strict=True)
            found |= {
                first.name: given[other.name]
                for first, other in pairs
                if other.name in given and first.name not in given
            }
    return found


def check_numbers(origin: str, name: str, values: Tensor) -> None:
    """Importance is finite and not negative; `origin` is who brought it, for the message."""
    if not bool(values.isfinite().all()):
        raise ValueError(
            f"{origin}: importance of {name} has NaN or Inf: leave the layer out, or measure again "
            "in a wider dtype"
        )
    if bool((values < 0).any()):
        raise ValueError(
            f"{origin}: importance of {name} has negative numbers, which no importance has"
        )
