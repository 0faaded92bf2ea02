"""`blockscale doctor`: versions, devices, and which kernels are usable on each."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch
from rich.console import Console
from rich.table import Table

from blockscale import ops
from blockscale.cli.cache import summary
from blockscale.cli.tuned import summary as summary_of_tuned
from blockscale.formats import CATALOGUE
from blockscale.layouts import canonical
from blockscale.problem import Kind, Problem
from blockscale.runtime import (
    VARIABLES,
    describe_device,
    devices,
    load_native,
    load_quick_call,
    target_of,
)
from blockscale.runtime.cuda import driver_version, load_nvrtc, open_cache

_PACKAGES = (
    "blockscale",
    "torch",
    "triton",
    "cuda-bindings",
    "safetensors",
    "transformers",
    "matplotlib",
)


def doctor() -> None:
    """Report versions, devices, usable kernels and environment variables."""
    console = Console(soft_wrap=True)
    console.print(f"python {platform.python_version()} on {platform.platform()}", highlight=False)
    for name in _PACKAGES:
        console.print(f"{name:13s} {_version(name)}", highlight=False)
    console.print(f"{'cuda':13s} {torch.version.cuda or 'torch was built without CUDA'}")
    console.print(f"{'NVRTC':13s} {_nvrtc()}", highlight=False)
    console.print(f"{'CUDA driver':13s} {_driver()}", highlight=False)
    console.print(f"{'CUDA kernels':13s} {_cached()}", highlight=False)
    console.print(f"{'native CPU':13s} {_native()}", highlight=False)
    console.print(f"{'quick call':13s} {_quick_call()}", highlight=False)
    console.print(f"{'tuned':13s} {summary_of_tuned()}", highlight=False)
    for device in devices():
        console.print()
        console.print(_kernels(device))
    console.print()
    for name, meaning in VARIABLES.items():
        console.print(f"{name}={os.environ.get(name, '')}  {meaning}", highlight=False)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _native() -> str:
    loaded = load_native()
    return loaded if isinstance(loaded, str) else f"{loaded.isa}, {loaded.path}"


def _quick_call() -> str:
    loaded = load_quick_call()
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


def _kernels(device: torch.device) -> Table:
    """Each kernel's answer to a decoding step, m = 1, for each verb."""
    target = target_of(device)
    table = Table(
        title=f"{device} ({target}): {describe_device(device)}", title_justify="left", min_width=60
    )
    for heading in ("verb", "kernel", "answer"):
        table.add_column(heading)
    for verb in ops.VERBS:
        for kernel, answer in _answers(verb, target).items():
            table.add_row(verb, kernel, answer)
    return table


def _answers(verb: str, target: str) -> dict[str, str]:
    """Kernel -> what it says, over every format."""
    refusals: dict[str, dict[str, str]] = {}
    for format in CATALOGUE.values():
        for answer in ops.answers(_sample(verb, format.name, target)):
            told = refusals.setdefault(answer.kernel, {})
            if answer.refusal is not None:
                told[format.name] = answer.refusal
    return {kernel: _sentence(told) for kernel, told in refusals.items()}


def _sentence(told: dict[str, str]) -> str:
    if not told:
        return "usable for every format"
    reasons = {reason: [name for name in told if told[name] == reason] for reason in told.values()}
    parts = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    usable = [name for name in CATALOGUE if name not in told]
    return "; ".join(([f"usable for {', '.join(usable)}"] if usable else []) + parts)


def _sample(verb: str, name: str, target: str) -> Problem:
    format = CATALOGUE[name]
    layout = canonical(format) if verb == "quantize" else ops.prepared_layout(format, target)
    return Problem(
        verb=verb,
        m=1,
        n=4096,
        k=4096,
        groups=8 if verb.startswith("grouped") else 1,
        ragged=verb.startswith("grouped"),
        gated="gated" in verb,
        activation="silu" if "gated" in verb else "",
        rule="absmax" if verb == "quantize" else "",
        x="bfloat16",
        w=str(Kind(format, layout)),
        out="bfloat16",
        target=target,
    )
