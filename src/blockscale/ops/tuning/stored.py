"""What tuning has found for a problem, if it holds on this machine."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from blockscale.kernels import KERNELS
from blockscale.ops.tuning.candidates import Candidate, offered
from blockscale.ops.tuning.sources import source_hash
from blockscale.problem import Problem
from blockscale.runtime import device_names, tuned

# A bias and an activation cost every kernel the same; the device stands in the file.
_INDIFFERENT = ("bias", "activation", "device")


def facts(problem: Problem) -> dict[str, Any]:
    """The fields that count, without those that are as usual."""
    return {
        each.name: getattr(problem, each.name)
        for each in fields(problem)
        if each.name not in _INDIFFERENT
        and (each.default is MISSING or getattr(problem, each.name) != each.default)
    }


def stored_result(problem: Problem) -> tuned.Result | None:
    if not tuned.results():  # as on most machines: nothing is hashed and no device asked
        return None
    machine = machine_of(problem.target)
    if machine is None:
        return None
    return tuned.find(machine, source_hash(problem.target), facts(problem))


def machine_of(target: str) -> tuned.Machine | None:
    """None where there is no such device, or where they are of two kinds."""
    names = device_names(target)
    return tuned.Machine(names[0], target) if len(names) == 1 else None


def other_rows(problem: Problem) -> list[int]:
    """The m for which the same problem has been tuned, in order."""
    machine = machine_of(problem.target) if tuned.results() else None
    if machine is None:
        return []
    sources, rest = source_hash(problem.target), facts(problem) | {"m": 0}
    alike = (
        result.problem.get("m")
        for (where, _), result in tuned.results().items()
        if (where, result.sources) == (machine, sources) and result.problem | {"m": 0} == rest
    )
    return sorted(m for m in alike if isinstance(m, int))


def as_candidate(problem: Problem, measured: tuned.Measured) -> Candidate | str:
    """The kernel and its config, or why they cannot run."""
    for kernel in KERNELS[problem.verb]:
        if measured.kernel == kernel.NAME:
            refusal = kernel.refuses(problem)
            if refusal is not None:
                return f"{kernel.NAME} refuses: {refusal}"
            for each in offered(kernel, problem):
                if each.fields == measured.config:
                    return each
            return f"{kernel.NAME} offers no config {measured.config}"
    return f"there is no kernel {measured.kernel}"
