"""`blockscale tune --show`: what tuning has kept, and what of it is used here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from blockscale import ops
from blockscale.runtime import tuned, tuned_enabled
from blockscale.runtime.environment import tuned_folder


def kept() -> list[dict[str, Any]]:
    """Every result with its machine; rows last, and numbers by their size."""
    found = [
        {
            "device": machine.device,
            "target": machine.target,
            "use": _use(machine, result),
            **asdict(result),
        }
        for (machine, _), result in tuned.results().items()
    ]
    return sorted(found, key=lambda each: (each["device"], each["target"], _order(each["problem"])))


def shown(results: list[dict[str, Any]]) -> Iterator[str]:
    """The same for people."""
    yield summary()
    for machine, listed in groupby(results, lambda each: f"{each['device']} ({each['target']})"):
        yield f"\n{machine}"
        yield from (f"  {_line(each)}" for each in listed)


def facts() -> dict[str, Any]:
    return {"folder": tuned_folder(), "enabled": tuned_enabled()}


def summary() -> str:
    off = "" if tuned_enabled() else ", none of which is used: BLOCKSCALE_TUNED=0"
    return f"{tuned_folder()}: {len(tuned.results())} results{off}"


def _line(result: dict[str, Any]) -> str:
    problem, rule, best = result["problem"], result["rule"], result["best"]
    facts = " ".join(f"{name}={value}" for name, value in problem.items() if name != "verb")
    times = f"{rule['microseconds']:.2f} us by rule, {best['microseconds']:.2f} us at best"
    config = " ".join(f"{name}={value}" for name, value in best["config"].items())
    return (
        f"{problem.get('verb')} {facts}: {times}, {result['date']}, {result['use']}: "
        f"{best['kernel']} {config}"
    )


def _use(machine: tuned.Machine, result: tuned.Result) -> str:
    if machine != ops.machine_of(machine.target):
        return "not used on this machine"
    if result.sources != ops.source_hash(machine.target):
        return "not used, since the kernels have changed"
    return f"used, {result.gain:.2f}x" if result.wins else "not used, since the gain is too small"


def _order(problem: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{problem.get(name)!s:>12}" for name in ("verb", "n", "k", "w", "x", "m"))
