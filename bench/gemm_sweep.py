"""Times every config of the Hopper GEMM on problems drawn at random, for its cost model.

    python -m bench.gemm_sweep --seed 1 --problems 60 sweep.jsonl      # on a Hopper GPU
    python -m bench.gemm_sweep --seed 1 --gradients sweep.jsonl        # with weights transposed
    python -m bench.gemm_sweep --seed 1 --dense --within 1.5 sweep.jsonl
    python -m bench.gemm_sweep --seed 1 --codebooks sweep.jsonl        # of 4 and 5 bits
    python -m bench.gemm_sweep --seed 91 --others --within 1.2 sweep.jsonl
    python -m bench.gemm_sweep --seed 71 --few-tiles --problems 20 --within 1.4 sweep.jsonl
    python -m bench.gemm_sweep --seed 81 --large --problems 40 --within 1.2 sweep.jsonl
    python -m bench.gemm_sweep --seed 1 --compile      # anywhere: fills the cubin cache

cuBLAS, in bfloat16, is timed beside them. A draw is fixed by its seed: n, k, m, format and verb of
each problem. One draw fits the constants of kernels/matmul/sm90_gemm/cost.py (bench.fit_gemm),
another judges them. Rows of experts fall on groups at random. With --within only configs that are
predicted to take at most so many times the least are compiled and timed: half of the time goes into
compiling, and predictions near the best are off by 6% in the median.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import blockscale as bs
from bench.cuda_timing import CudaClock, CudaStopwatch
from blockscale.formats import format as format_named
from blockscale.kernels import Kernel
from blockscale.kernels import input_grad as gradients
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.input_grad.sm90_gemm import as_product
from blockscale.kernels.matmul import sm90_gemm
from blockscale.kernels.matmul.sm90_gemm.choice import predicted
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.ops.operand import as_groups
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu
from blockscale.runtime.cuda import cubin

# How often each kind of problem is drawn; few kinds, since each costs compilations.
KINDS = {
    ("nvfp4", "plain"): 8, ("nvfp4", "gated"): 3, ("nvfp4", "experts"): 4, ("nvfp4", "batch"): 1,
    ("kbit4", "plain"): 4, ("kbit4", "experts"): 2, ("mxfp4", "plain"): 2, ("mxfp8", "plain"): 3,
}  # fmt: skip
GRADIENTS = {
    ("nvfp4", "gradient"): 5, ("kbit4", "gradient"): 3, ("mxfp8", "gradient"): 1,
}  # fmt: skip
DENSE = {
    ("nvfp4", "plain"): 8, ("nvfp4", "gated"): 3, ("kbit4", "plain"): 4, ("mxfp8", "plain"): 3,
}  # fmt: skip
CODEBOOKS = {
    ("kbit4", "plain"): 5, ("kbit4", "experts"): 2, ("kbit4", "gated"): 1,
    ("kbit5", "plain"): 5, ("kbit5", "experts"): 2, ("kbit5", "gated"): 1, ("kbit5", "gradient"): 1,
}  # fmt: skip
OTHERS = {
    ("mxfp4", "plain"): 1, ("mxfp6_e2m3", "plain"): 1, ("mxfp6_e3m2", "plain"): 1,
    ("kbit2", "plain"): 2, ("kbit3", "plain"): 2, ("kbit5", "plain"): 1,
    ("mxfp4", "gated"): 1, ("kbit3", "gated"): 1,
}  # fmt: skip
_FLOPS, _MANY_FLOPS = (4e9, 4e11), (4e11, 6e12)  # from and to
_ROUNDS = 5
_RING_BYTES = 150e6  # of weights that calls go round: three times the L2 cache
_JOBS = 15


def draw(
    seed: int,
    count: int,
    kinds: dict[tuple[str, str], int],
    flops: tuple[float, float] = _FLOPS,
) -> list[Problem]:
    order = random.Random(seed)  # noqa: S311
    return [_draw_one(order, kinds, flops) for _ in range(count)]


def draw_large(seed: int, count: int) -> list[Problem]:
    """Of half a millisecond to ten."""
    return draw(seed, count, DENSE, _MANY_FLOPS)


def _draw_one(
    order: random.Random, kinds: dict[tuple[str, str], int], flops: tuple[float, float]
) -> Problem:
    """n and k between 1,024 and 32,768, m between 48 and 8,192, evenly by their logarithms."""
    least, most = flops
    while True:
        name, verb = order.choices(list(kinds), list(kinds.values()))[0]
        n, k = (64 * round(2 ** order.uniform(4, 9)) for _ in range(2))
        m, groups = round(2 ** order.uniform(5.6, 13)), 1
        if verb == "experts":
            groups, n, k = order.choice((8, 32, 64, 128)), n // 256 * 64, k // 256 * 64
        if verb == "batch":
            groups = order.choice((2, 4, 8))
        made = problem(name, verb, m, n, k, groups)
        if least < made.flops < most and n >= 256 and k >= 256:
            return made


def draw_few_tiles(seed: int, count: int) -> list[Problem]:
    """Of 256 rows of x and 128 of w, 16 to 200: as many as SMs, more or less. Most are gated."""
    order = random.Random(seed)  # noqa: S311
    found: list[Problem] = []
    while len(found) < count:
        verb = order.choice(("gated", "gated", "plain"))
        name = order.choice(("nvfp4", "nvfp4", "kbit4")) if verb == "plain" else "nvfp4"
        m = round(2 ** order.uniform(7.2, 10.2))
        n, k = 64 * order.randrange(16, 97), 64 * order.randrange(24, 129)
        if 16 <= ceil(m / 256) * (n // (64 if verb == "gated" else 128)) <= 200:
            found.append(problem(name, verb, m, n, k, 1))
    return found


def problem(name: str, verb: str, m: int, n: int, k: int, groups: int) -> Problem:
    format = format_named(name)
    gated, ragged = verb.startswith("gated"), verb.endswith("experts")
    verbs = {
        "gated": "gated_matmul",
        "experts": "grouped_matmul",
        "gated experts": "grouped_gated_matmul",
        "gradient": "input_grad",
    }
    return Problem(
        verb=verbs.get(verb, "matmul"),
        m=m,
        n=n,
        k=k,
        groups=groups,
        ragged=ragged,
        gated=gated,
        activation="silu" if gated else "",
        x="bfloat16",
        w=str(Kind(format, _fragments(name))),
        out="bfloat16",
        device=gpu("h200"),
    )


def _fragments(name: str) -> Any:
    return fragments(format_named(name))


def _kernel(asked: Problem) -> Kernel:
    return gradients.sm90_gemm if asked.verb == "input_grad" else sm90_gemm


def near(asked: Problem, within: float) -> list[Config]:
    """Configs that are predicted to take so many times the least at most."""
    found = _kernel(asked).configs(asked)
    model = as_product(asked) if asked.verb == "input_grad" else asked
    times = [predicted(model, each).microseconds for each in found]
    return [each for each, time in zip(found, times, strict=True) if time <= within * min(times)]


def compile_ahead(problems: list[Problem], within: float = inf) -> None:
    builds = {
        build
        for each in problems
        for config in near(each, within)
        for build in _kernel(each).bind(each, config).builds[:1]
    }
    print(f"{len(builds)} builds", file=sys.stderr)
    with ThreadPoolExecutor(_JOBS) as pool:
        list(pool.map(lambda build: cubin(build, "sm_90"), builds))


def time_all(asked: Problem, within: float = inf) -> dict[str, Any]:
    """Microseconds of every config and of cuBLAS in bfloat16, in turns."""
    device = torch.device("cuda", torch.cuda.current_device())
    wide, narrow = (asked.n, asked.k) if asked.verb == "input_grad" else (asked.k, asked.n)
    x = torch.randn(asked.rows, wide, device=device).bfloat16()
    out = torch.empty(asked.rows, narrow, device=device, dtype=torch.bfloat16)
    sizes = _group_sizes(asked, device)
    branches = 2 if asked.gated else 1
    one = branches * asked.groups * asked.n * asked.k
    ring = max(1, min(16, ceil(_RING_BYTES / (one * asked.w_kind.format.bits_per_value / 8))))
    weights = [[_weights(asked, device) for _ in range(branches)] for _ in range(ring)]
    watches: dict[Config | str, CudaStopwatch] = {}
    for config in near(asked, within):
        launches = [
            _kernel(asked).bind(
                asked, config, tuple(as_groups(q.operand) for q in each), frozen=True
            )
            for each in weights
        ]
        watches[config] = CudaStopwatch(
            [lambda run=run: run(x, (None,) * branches, sizes, out) for run in launches]
        )
    watches["cublas"] = CudaStopwatch(list(_library(asked, x, sizes)))
    taken: dict[Any, list[float]] = {each: [] for each in watches}
    for _ in range(_ROUNDS):
        for each, watch in watches.items():
            taken[each].append(watch.sample() * 1e6)
    times = {each: round(median(samples), 3) for each, samples in taken.items()}
    return {
        "problem": described(asked),
        "cublas": times.pop("cublas"),
        "configs": [[*asdict(config).values(), time] for config, time in times.items()],
    }


def described(asked: Problem) -> dict[str, Any]:
    of = {(True, False): "gated", (False, True): "experts", (True, True): "gated experts"}
    verb = of.get((asked.gated, asked.ragged), "plain")
    verb = "gradient" if asked.verb == "input_grad" else verb
    verb = "batch" if verb == "plain" and asked.groups > 1 else verb
    facts = {name: getattr(asked, name) for name in ("m", "n", "k", "groups")}
    return {"format": asked.w_kind.format.name, "verb": verb, **facts}


def _group_sizes(asked: Problem, device: torch.device) -> Tensor | None:
    if not asked.ragged:
        return None
    order = torch.Generator().manual_seed(asked.m)
    owners = torch.randint(asked.groups, (asked.m,), generator=order)
    return torch.bincount(owners, minlength=asked.groups).to(device)


def _weights(asked: Problem, device: torch.device) -> bs.QTensor:
    shape = (asked.groups, asked.n, asked.k)
    source = torch.randn(shape, device=device, dtype=torch.bfloat16)
    return bs.quantize(source, asked.w_kind.format, scale="absmax").prepare()


def _library(asked: Problem, x: Tensor, sizes: Tensor | None) -> Iterator[Any]:
    """torch's products of the same shape in bfloat16: weights that do not fit the L2 cache."""
    branches = 2 if asked.gated else 1
    shape = (asked.groups, branches * asked.n, asked.k)
    size = 2 * asked.groups * branches * asked.n * asked.k
    for _ in range(max(1, min(8, ceil(_RING_BYTES / size)))):
        w = torch.randn(shape, device=x.device, dtype=torch.bfloat16)
        if sizes is not None:
            ends = sizes.cumsum(0).int()
            yield lambda w=w, ends=ends: torch._grouped_mm(x, w.transpose(1, 2), offs=ends)
        elif asked.verb == "input_grad":
            yield lambda w=w: x @ w[0]
        elif asked.gated:
            yield lambda w=w: _swiglu(x @ w[0].T, asked.n)
        else:
            batches = x.view(asked.groups, asked.m, asked.k)
            yield lambda w=w, x=batches: torch.bmm(x, w.transpose(1, 2))


def _swiglu(both: Tensor, n: int) -> Tensor:
    return torch.nn.functional.silu(both[:, :n]) * both[:, n:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--problems", type=int, default=60)
    drawn = parser.add_mutually_exclusive_group()
    for name, kinds, meaning in (
        ("gradients", GRADIENTS, "of x, and no products"),
        ("dense", DENSE, "no experts and no batches"),
        ("codebooks", CODEBOOKS, "formats of 4 and 5 bits alone"),
        ("others", OTHERS, "formats that other draws have few of, or none"),
    ):
        drawn.add_argument(
            f"--{name}", dest="kinds", action="store_const", const=kinds, help=meaning
        )
    drawn.add_argument("--few-tiles", action="store_true", help="about as many tiles as SMs")
    drawn.add_argument("--large", action="store_true", help="half a millisecond and longer")
    parser.add_argument("--within", type=float, default=inf, help="of the least predicted time")
    parser.add_argument("--compile", action="store_true", help="compile, and time nothing")
    asked = parser.parse_args()
    if asked.few_tiles:
        problems = draw_few_tiles(asked.seed, asked.problems)
    elif asked.large:
        problems = draw_large(asked.seed, asked.problems)
    else:
        problems = draw(asked.seed, asked.problems, asked.kinds or KINDS)
    compile_ahead(problems, asked.within)
    if asked.compile:
        return
    CudaClock()
    with asked.out.open("a") as file:
        for each in problems:
            file.write(json.dumps(time_all(each, asked.within)) + "\n")
            file.flush()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
