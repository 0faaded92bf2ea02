"""The names that options take: for help, completion and early errors.

Help and completion must not load torch, and most of these are known to modules that do. They are
written here a second time; the tests compare them with what the library takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from blockscale.formats import CATALOGUE, INT8, Format, activation_format

DTYPES = ("float32", "bfloat16", "float16")
SCALE_RULES = ("absmax", "mse", "four_over_six", "floor", "rceil", "even", "even1")
DIALECTS = ("compressed-tensors", "modelopt", "gpt-oss", "blockscale")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swiglu_oai")
TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a")
DEVICES = ("cpu", "cuda", "cuda:0", "cuda:1")
KEEP = "keep"  # in the place of a format

Completed = list[tuple[str, str]]  # values, each with what the shell may show beside it


def check_name(option: str, given: str, names: Sequence[str]) -> None:
    """Raise where a name is none of those."""
    if given not in names:
        near = get_close_matches(given, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(names)}"
        raise ValueError(f"{option} {given}: {hint}")


def find_x_format(name: str | None) -> Format | None:
    """Of `--x-format`, where it is given."""
    return None if name is None else activation_format(name)


def complete(names: Sequence[str]) -> Callable[[str], list[str]]:
    """What completes an option that takes one of some names."""

    def matching(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return matching


def complete_format(incomplete: str) -> Completed:
    return [
        (name, f"{entry.bits_per_value:g} bits, {entry.spec}")
        for name, entry in CATALOGUE.items()
        if name.startswith(incomplete.lower())
    ]


def complete_x_format(incomplete: str) -> Completed:
    int8 = [(INT8.name, "CPUs only")] if INT8.name.startswith(incomplete) else []
    return int8 + complete_format(incomplete)


def complete_recipe(incomplete: str) -> Completed:
    """After each `=` and each comma of "PATTERN=FORMAT,FORMAT"."""
    cut = max(incomplete.rfind("="), incomplete.rfind(",")) + 1
    kept, last = incomplete[:cut], incomplete[cut:]
    keep = [(KEEP, "as it is")] if kept.endswith("=") and KEEP.startswith(last) else []
    return [(kept + name, note) for name, note in keep + complete_format(last)]
