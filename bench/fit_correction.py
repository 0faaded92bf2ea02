"""Fits the correction of the stream kernel's predicted times to stored sweeps, and judges choices.

    python -m bench.fit_correction FIT.jsonl ... [--judge OTHER.jsonl ...] [--write]

Only the order of configs within a problem decides, so that the loss is of errors less their mean
over the problem, with more weight on configs near the best. Problems that `--judge` has are left
out of the fit wherever they stand.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bench.fit_stream import Timing, judge, read, summary
from blockscale.kernels.matmul.stream.correction import TABLE, Layer, evaluate, features
from blockscale.kernels.matmul.stream.cost import cost

_HIDDEN = (32, 16)
_STEPS = 3000
_RATE, _DECAY = 5e-3, 1.0
_SOFT = 0.10  # how much slower than the best a config is when it counts half
_ROBUST = 0.10  # errors beyond count by their size and not by its square
_LEVEL = 0.05  # weight of a problem's mean error, which no choice depends on
_DIGITS = 5


def known(timing: Timing) -> tuple[list[float], float]:
    """Of one launch: its features, and by how much the prediction missed it."""
    expected = cost(timing.problem, timing.config)
    missed = math.log(timing.microseconds / expected.microseconds)
    return features(timing.work, expected, timing.problem.device.sms), missed


def fit(timings: Sequence[Timing], seed: int = 0) -> list[Layer]:
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # the same sums on every machine of a kind
    listed = [known(each) for each in timings]
    x = torch.tensor([found for found, _ in listed])
    missed = torch.tensor([missed for _, missed in listed])
    numbers: dict[object, int] = {}
    problem = torch.tensor([numbers.setdefault(each.problem, len(numbers)) for each in timings])
    weight = torch.tensor([1 / (_SOFT + each.relative - 1) for each in timings])
    mean, spread = x.mean(0), x.std(0) + 1e-6
    x = (x - mean) / spread
    sizes = (x.shape[1], *_HIDDEN)
    layers = [nn.Linear(*each) for each in zip(sizes, (*_HIDDEN, 1), strict=True)]
    layers[-1].weight.data *= 0.1
    network = nn.Sequential(*(part for each in layers for part in (each, nn.Tanh())))[:-1]
    optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, _RATE, total_steps=_STEPS, pct_start=0.1
    )
    for _ in range(_STEPS):
        some = (torch.rand(len(numbers)) < 0.5)[problem].nonzero()[:, 0]  # half of the problems
        errors = network(x[some])[:, 0] - missed[some]
        loss = _loss(errors, problem[some], weight[some], len(numbers))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return _plain(layers, mean, spread)


def _loss(errors: Tensor, problem: Tensor, weight: Tensor, problems: int) -> Tensor:
    def of_problems(values: Tensor) -> Tensor:
        return torch.zeros(problems).index_add(0, problem, values)

    mean = of_problems(weight * errors) / of_problems(weight).clamp(min=1e-6)
    apart = (errors - mean[problem]) / _ROBUST
    robust = 2 * _ROBUST**2 * ((1 + apart**2).sqrt() - 1)
    return (weight * robust).mean() + _LEVEL * (weight * errors**2).mean()


def _plain(layers: list[nn.Linear], mean: Tensor, spread: Tensor) -> list[Layer]:
    """As lists of rounded numbers, of features as they are and not as they were normalised."""
    first = layers[0]
    with torch.no_grad():
        first.weight /= spread
        first.bias -= first.weight @ mean
    return [
        Layer([_rounded(row) for row in each.weight.tolist()], _rounded(each.bias.tolist()))
        for each in layers
    ]


def _rounded(numbers: list[float]) -> list[float]:
    return [float(f"{each:.{_DIGITS}g}") for each in numbers]


def corrected(timings: Sequence[Timing], layers: list[Layer]) -> list[float]:
    return [
        cost(each.problem, each.config).microseconds * math.exp(evaluate(layers, known(each)[0]))
        for each in timings
    ]


def write(layers: list[Layer], timings: Sequence[Timing]) -> None:
    device = timings[0].problem.device
    told = [
        "[[" + ",\n".join(json.dumps(row) for row in weights) + "],\n" + json.dumps(biases) + "]"
        for weights, biases in layers
    ]
    head = f'{{"target": "{device.arch}", "sms": {device.sms}, "layers": [\n'
    TABLE.write_text(head + ",\n".join(told).replace(", ", ",") + "\n]}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fit", nargs="+")
    parser.add_argument("--judge", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    judges = read(args.judge)
    held_out = {each.problem for each in judges}
    timings = [each for each in read(args.fit) if each.problem not in held_out]
    layers = fit(timings, args.seed)
    for name, some in (("what is fitted", timings), ("other problems", judges)):
        if some:
            alone = [cost(each.problem, each.config).microseconds for each in some]
            print(f"{name}, predicted: {summary(judge(some, alone))}")
            print(f"{name}, corrected: {summary(judge(some, corrected(some, layers)))}")
    if args.write:
        write(layers, timings)


if __name__ == "__main__":
    main()
