"""What is known of a kernel on a GPU: proven, unproven or failed; and proving what is unproven."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from threading import RLock
from typing import Any, Literal, NamedTuple

import torch

from blockscale.kernels import KERNELS, Config, Kernel
from blockscale.ops.proof.apart import CannotProveError, Prover
from blockscale.ops.proof.check import find_failure
from blockscale.ops.proof.record import tested
from blockscale.ops.proof.subject import subject
from blockscale.ops.tuning.sources import source_hash
from blockscale.ops.versions import versions
from blockscale.problem import Problem
from blockscale.runtime import (
    Device,
    describe_device,
    device_of,
    devices,
    proven,
    proving_enabled,
)
from blockscale.runtime.cuda import driver_version
from blockscale.runtime.result_folder import warn_once

State = Literal["proven", "unproven", "failed", "needs no proof"]

_lock = RLock()  # one proof at a time
_unkept: dict[tuple[object, ...], str] = {}  # why something could not be proven in this process
_held: dict[tuple[object, ...], proven.Proof] = {}  # of this process, where nothing can be kept


class Standing(NamedTuple):
    state: State
    said: str

    def __str__(self) -> str:
        return f"{self.state}: {self.said}" if self.said else self.state


def standing(problem: Problem, kernel: Kernel) -> Standing:
    """What is known; nothing is run."""
    device = problem.device
    if not device.is_gpu or kernel is KERNELS[problem.verb][-1]:
        return Standing("needs no proof", "")
    known = tested(device.arch, problem.verb, kernel.NAME)
    if known is not None:
        return Standing("proven", str(known))
    where = locate(device) if device.live else None
    proof = None if where is None else _find(problem, kernel, where)
    if proof is None:
        told = _unkept.get(_key(problem, kernel))
        if told is not None:
            return Standing("failed", told)
        said = f"no test has run it on {device.arch}: it proves itself before its first use"
        return Standing("unproven", said)
    if proof.failure:
        return Standing("failed", f"on {proof.date}: {proof.failure}")
    return Standing("proven", f"on this GPU, {proof.date}")


def why_unfit(problem: Problem, kernel: Kernel, config: Config | None) -> str | None:
    """Why a kernel must not run here; None where it may. What is unproven is proven first."""
    found = standing(problem, kernel)
    if found.state == "unproven" and proving_enabled():
        where = locate(problem.device) if problem.device.live else None
        if where is None:
            return None  # not here: explained, or compiled for
        _check_not_capturing(problem, kernel)
        with _lock:
            if standing(problem, kernel).state == "unproven":
                with Prover(where) as prover:
                    prove(prover, problem, kernel, config, where)
        found = standing(problem, kernel)
    return f"failed its proof {found.said}" if found.state == "failed" else None


def prove(
    prover: Prover, problem: Problem, kernel: Kernel, config: Config | None, where: torch.device
) -> str:
    """Find out whether a kernel works, and keep that. What is wrong with it; empty where nothing
    is."""
    try:
        failure = _find_failure(prover, problem, kernel, config, where) or ""
    except torch.OutOfMemoryError as error:
        told = f"there was no memory for it: {error}".partition("\n")[0]
        _unkept[_key(problem, kernel)] = told
        return told
    proof = proven.Proof(
        kernel=kernel.NAME,
        subject=subject(problem),
        sources=source_hash(problem.target),
        driver=_driver(),
        failure=failure,
        date=date.today().isoformat(),
        versions=versions(problem.target),
    )
    try:
        proven.keep(machine(problem.device, where), proof)
    except (RuntimeError, OSError) as error:
        warn_once(f"{kernel.NAME} will be proven again in each process: {error}")
        _held[_key(problem, kernel)] = proof
    return failure


def _find_failure(
    prover: Prover, problem: Problem, kernel: Kernel, config: Config | None, where: torch.device
) -> str | None:
    """In a process of its own; where there can be none, as on a GPU that takes one process only,
    in this one."""
    try:
        return prover.find_failure(kernel, problem, config)
    except CannotProveError:
        # A thread has none of the caller's modes, streams and settings of autocast.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(find_failure, kernel, problem, config, where).result()


def forget() -> None:
    """What this process has found out and not kept."""
    _unkept.clear()
    _held.clear()
    proven.forget()


def locate(device: Device) -> torch.device | None:
    """Where a live device is; None where it is described as live and is not here."""
    return next((each for each in devices() if device_of(each) == device), None)


def machine(device: Device, where: torch.device) -> proven.Machine:
    return proven.Machine(describe_device(where), device.arch)


def _find(problem: Problem, kernel: Kernel, where: torch.device) -> proven.Proof | None:
    held = _held.get(_key(problem, kernel))
    if held is not None or not proven.proofs():
        return held
    return proven.find(
        machine(problem.device, where),
        kernel.NAME,
        subject(problem),
        source_hash(problem.target),
        _driver(),
    )


def _key(problem: Problem, kernel: Kernel) -> tuple[object, ...]:
    facts: dict[str, Any] = subject(problem)
    return problem.device, kernel.NAME, *facts.items()


def _driver() -> str:
    return driver_version() or "none"


def _check_not_capturing(problem: Problem, kernel: Kernel) -> None:
    """A graph is replayed for hours: it must hold the right kernel, not the next best one."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{problem}: {kernel.NAME} has never run on this kind of GPU and would prove itself "
            "first, which cannot be done while a CUDA graph is captured: make such a call once "
            "before the capture, or run `blockscale prove`"
        )
