"""Proofs in a process of their own: `python -m blockscale.ops.proof.server`.

A wrong kernel may hang, or make an access that no other kernel of its process survives. So this one
answers requests from its standard input, one JSON object a line, and whoever has started it ends it
where it takes too long. Answers are lines that begin with `MARK`; other libraries may print too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch

from blockscale.kernels import KERNELS, Config, Kernel
from blockscale.ops.proof.check import builds, find_failure
from blockscale.problem import Problem
from blockscale.runtime import device_of
from blockscale.runtime.cuda import compile_all, is_cached, open_cache

MARK = "blockscale-proof "
READY = {"ready": True}  # the device answers
BUILT = {"built": True}  # everything is compiled: launches come next
NO_MEMORY = "no_memory"  # in place of `failure`: nothing was found out about the kernel


def as_request(kernel: Kernel, problem: Problem, config: Config | None) -> dict[str, Any]:
    facts = {
        name: getattr(problem, name) for name in problem.__dataclass_fields__ if name != "device"
    }
    return {
        "kernel": kernel.NAME,
        "problem": facts,
        "config": None if config is None else json.loads(json.dumps(asdict(config))),
    }


def serve(device: torch.device, requests: Iterable[str], answer: Callable[[Any], None]) -> None:
    torch.zeros(1, device=device)  # an error here is not a kernel's
    answer(READY)
    for line in requests:
        request = json.loads(line)
        problem = Problem(**request["problem"], device=device_of(device))
        kernel = next(each for each in KERNELS[problem.verb] if request["kernel"] == each.NAME)
        config = _config(kernel, problem, request["config"])
        needed = builds(kernel, problem, config)
        missing = [each for each in needed if open_cache() and not is_cached(each, problem.target)]
        for _ in compile_all(missing, problem.target):
            pass  # a failure comes up again in the launch, where it has a case
        answer(BUILT)
        try:
            answer({"failure": find_failure(kernel, problem, config, device) or ""})
        except torch.OutOfMemoryError as error:
            answer({NO_MEMORY: str(error)})


def _config(kernel: Kernel, problem: Problem, fields: dict[str, Any] | None) -> Config | None:
    if fields is None or kernel.refuses(problem) is not None:
        return None
    offered = kernel.configs(problem)
    same = (each for each in offered if json.loads(json.dumps(asdict(each))) == fields)
    return next(same, None)


def main(device: str) -> None:
    def answer(content: Any) -> None:
        print(f"{MARK}{json.dumps(content)}", flush=True)

    with torch.no_grad():
        serve(torch.device(device), sys.stdin, answer)


if __name__ == "__main__":
    main(sys.argv[1])
