"""What `blockscale doctor` finds: this machine, and each kernel's answer on it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from rich.table import Table

from blockscale import ops
from blockscale.cli.cache import summary
from blockscale.cli.tuned import summary as summary_of_tuned
from blockscale.formats import CATALOGUE
from blockscale.runtime import (
    VARIABLES,
    Device,
    describe_device,
    device_of,
    devices,
    load_native,
    load_replay,
    proven,
    proving_enabled,
)
from blockscale.runtime.cuda import driver_version, load_nvrtc, open_cache
from blockscale.runtime.environment import proven_folder

_PACKAGES = (
    "blockscale",
    "torch",
    "triton",
    "cuda-bindings",
    "safetensors",
    "transformers",
    "matplotlib",
)


def examine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {
            **{name: _version(name) for name in _PACKAGES},
            "cuda": torch.version.cuda or "torch was built without CUDA",
            "NVRTC": _nvrtc(),
            "CUDA driver": _driver(),
        },
        "state": {
            "CUDA kernels": _cached(),
            "native CPU": _native(),
            "replay": _replay(),
            "tuned": summary_of_tuned(),
            "proven": _proven(),
        },
        "devices": [_device(each) for each in devices()],
        "environment": {
            name: {"value": os.environ.get(name), "meaning": meaning}
            for name, meaning in VARIABLES.items()
        },
    }


def shown(found: dict[str, Any]) -> Iterator[str | Table]:
    """The same for people."""
    yield f"python {found['python']} on {found['platform']}"
    for name, state in {**found["versions"], **found["state"]}.items():
        yield f"{name:13s} {state}"
    for device in found["devices"]:
        yield ""
        yield _table(device)
    yield ""
    for name, variable in found["environment"].items():
        yield f"{name}={variable['value'] or ''}  {variable['meaning']}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _native() -> str:
    loaded = load_native()
    return loaded if isinstance(loaded, str) else f"{loaded.isa}, {loaded.threads}, {loaded.path}"


def _replay() -> str:
    loaded = load_replay()
    return f"{loaded}; calls go through Python" if isinstance(loaded, str) else loaded.__file__


def _nvrtc() -> str:
    loaded = load_nvrtc()
    return loaded if isinstance(loaded, str) else loaded.version


def _driver() -> str:
    version = driver_version()
    return "none: no NVIDIA driver was found" if version is None else f"knows CUDA {version}"


def _cached() -> str:
    kept = open_cache()
    return "are not kept on the disk" if kept is None else summary(kept)


def _proven() -> str:
    off = "" if proving_enabled() else "; unproven kernels run as they are: BLOCKSCALE_PROVE=0"
    failed = sum(bool(each.failure) for each in proven.proofs().values())
    return f"{proven_folder()}: {len(proven.proofs())} proofs, {failed} failed{off}"


def _device(device: torch.device) -> dict[str, Any]:
    """With each kernel's answer to a decoding step, m = 1, for each verb."""
    facts = device_of(device)
    return {
        "device": str(device),
        "target": facts.arch,
        "description": describe_device(device),
        "kernels": {verb: _answers(verb, facts) for verb in ops.VERBS},
    }


def _table(found: dict[str, Any]) -> Table:
    title = f"{found['device']} ({found['target']}): {found['description']}"
    table = Table(title=title, title_justify="left", min_width=60)
    for heading in ("verb", "kernel", "answer"):
        table.add_column(heading)
    for verb, answers in found["kernels"].items():
        for kernel, answer in answers.items():
            table.add_row(verb, kernel, answer)
    return table


def _answers(verb: str, device: Device) -> dict[str, str]:
    """Kernel -> what it says, over every format."""
    refusals: dict[str, dict[str, str]] = {}
    known: dict[str, set[str]] = {}  # proven, or unproven, of what is usable
    for format in CATALOGUE.values():
        problem = ops.example(verb, format, device)
        for answer in [] if problem is None else ops.answers(problem):
            told = refusals.setdefault(answer.kernel, {})
            known.setdefault(answer.kernel, set())
            if answer.refusal is not None:
                told[format.name] = answer.refusal
            elif answer.standing.state != "needs no proof":
                known[answer.kernel].add(str(answer.standing))
    return {
        kernel: "; ".join((_sentence(told), *sorted(known[kernel])))
        for kernel, told in refusals.items()
    }


def _sentence(told: dict[str, str]) -> str:
    if not told:
        return "usable for every format"
    reasons = {reason: [name for name in told if told[name] == reason] for reason in told.values()}
    parts = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    usable = [name for name in CATALOGUE if name not in told]
    return "; ".join(([f"usable for {', '.join(usable)}"] if usable else []) + parts)
