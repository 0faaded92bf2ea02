"""`blockscale tune --show`: what tuning has kept, and what of it is used here."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from blockscale import ops
from blockscale.runtime import tuned, tuned_enabled
from blockscale.runtime.environment import tuned_folder


def show(console: Console) -> None:
    kept = tuned.results()
    console.print(summary(), markup=False)
    for machine in dict.fromkeys(where for where, _, _ in kept):
        console.print(f"\n{machine.device} ({machine.target})", markup=False)
        listed = [result for (where, _, _), result in kept.items() if where == machine]
        for result in sorted(listed, key=lambda each: _order(each.problem)):
            console.print(f"  {_line(machine, result)}", markup=False)


def summary() -> str:
    off = "" if tuned_enabled() else ", none of which is used: BLOCKSCALE_TUNED=0"
    return f"{tuned_folder()}: {len(tuned.results())} results{off}"


def _line(machine: tuned.Machine, result: tuned.Result) -> str:
    facts = " ".join(f"{name}={value}" for name, value in result.problem.items() if name != "verb")
    times = f"{result.rule.microseconds:.2f} us by rule, {result.best.microseconds:.2f} us at best"
    config = " ".join(f"{name}={value}" for name, value in result.best.config.items())
    return (
        f"{result.problem.get('verb')} {facts}: {times}, {result.date}, {_use(machine, result)}: "
        f"{result.best.kernel} {config}"
    )


def _use(machine: tuned.Machine, result: tuned.Result) -> str:
    if machine != ops.machine_of(machine.target):
        return "not used on this machine"
    if result.sources != ops.source_hash(machine.target):
        return "not used, since the kernels have changed"
    return f"used, {result.gain:.2f}x" if result.wins else "not used, since the gain is too small"


def _order(problem: dict[str, Any]) -> tuple[str, ...]:
    """Rows last, and numbers by their size."""
    return tuple(f"{problem.get(name)!s:>12}" for name in ("verb", "n", "k", "w", "x", "m"))
