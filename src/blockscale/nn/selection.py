"""Which layers are quantised, and to what: patterns over the names of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from torch import nn

from blockscale.formats import Format
from blockscale.formats import format as find_format
from blockscale.nn.adapters import adapted_name

Where = Callable[[str, nn.Module], bool] | str | Iterable[str] | None

# Heads, whose errors reach the logits unattenuated, and routers, which are small and where an error
# sends a token to another expert. (Embeddings and norms are no linear layers.)
HEADS = ("*.lm_head", "*.embed_out")
KEPT = (
    *HEADS,
    "*.score",
    "*.classifier",
    "*.gate",
    "*.gate.*",  # layers of a router: HunYuan, Zaya
    "*.router",
    "*.router.*",
    "*_router",
    "*.shared_expert_gate",
)


def matches(pattern: str, *names: str) -> bool:
    """Whether a name fits: "*.down_proj" fits "model.layers.0.mlp.down_proj" and "down_proj", and
    "down_proj.base_layer", which has an adapter."""
    every = {*names, *map(adapted_name, names)}
    return any(fnmatchcase(name, pattern) or fnmatchcase(f".{name}", pattern) for name in every)


def selector(where: Where, *, head: bool = False) -> Callable[[str, nn.Module], str]:
    """A function of a layer's name and module: "" for those that `where` wants, else why not.

    head: output heads as well, whatever `where` says of them
    """
    if head:
        rest = selector(where)
        return lambda name, module: (
            "" if any(matches(pattern, name) for pattern in HEADS) else rest(name, module)
        )
    if where is None:
        return lambda name, module: next(
            (f"kept by default: {pattern}" for pattern in KEPT if matches(pattern, name)), ""
        )
    if callable(where):
        wants = where
        return lambda name, module: "" if wants(name, module) else "not wanted by where"
    patterns = [where] if isinstance(where, str) else list(where)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(
                f"quantize_: where must be a pattern, several, or a function of a name and a "
                f"module, got {pattern!r} among them"
            )
    return lambda name, module: (
        "" if any(matches(pattern, name) for pattern in patterns) else "not matched by where"
    )


class Formats:
    """One format for all weights, or formats by pattern: the first that fits a weight's name."""

    def __init__(self, formats: Format | str | Mapping[str, Format | str | None]) -> None:
        if not isinstance(formats, Mapping):
            formats = {"*": formats}
        self._by_pattern = {
            pattern: None if each is None else find_format(each)
            for pattern, each in formats.items()
        }
        self._used: set[str] = set()

    def of(self, *names: str) -> Format | str:
        """The format of a weight that goes by these names, or why it is kept."""
        for pattern, format in self._by_pattern.items():
            if matches(pattern, *names):
                self._used.add(pattern)
                return f"kept by format: {pattern}" if format is None else format
        return "no format for this name"

    def __iter__(self) -> Iterator[Format]:
        return (format for format in self._by_pattern.values() if format is not None)

    @property
    def unused(self) -> tuple[str, ...]:
        return tuple(pattern for pattern in self._by_pattern if pattern not in self._used)
