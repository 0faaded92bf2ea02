"""Kernels and a clock for tests of tuning: times are invented, results are not."""

from dataclasses import dataclass

from blockscale.kernels.matmul import reference
from blockscale.problem import Problem


@dataclass(frozen=True)
class Config:
    speed: int

    def __str__(self):
        return f"speed {self.speed}"


class Clock:
    """Time passes where a kernel says so."""

    def __init__(self):
        self.now = 0.0
        self.rings = []

    def __call__(self, calls):
        self.rings.append(calls)
        return Stopwatch(self, calls)


class Stopwatch:
    def __init__(self, clock, calls):
        self.clock, self.calls, self.taken = clock, calls, 0

    def sample(self):
        before, self.taken = self.clock.now, self.taken + 1
        self.calls[self.taken % len(self.calls)]()
        return self.clock.now - before


class Fake:
    """The definition, in 100 us divided by the config's speed."""

    def __init__(self, clock, *speeds, name="fake", error=None, wrong=()):
        self.NAME, self.clock, self.wrong, self.error = name, clock, wrong, error or {}
        self.listed = [Config(speed) for speed in speeds]
        self.refusal = None
        self.launched, self.met = [], []

    def refuses(self, problem):
        return self.refusal

    def configs(self, problem):
        return self.listed

    def launch(self, problem, config, *tensors):
        _, weights, _, group_sizes, _ = tensors
        self.launched.append(config.speed)
        self.met.append((weights[0].codes.data_ptr(), group_sizes))
        self.clock.now += 1e-4 / config.speed
        if config.speed in self.error:
            raise self.error[config.speed]
        reference.launch(problem, reference.configs(problem)[0], *tensors)
        if config.speed in self.wrong:
            tensors[-1][-1, -1] += 1


def problem(**changes):
    facts = {"verb": "matmul", "m": 2, "n": 48, "k": 64, "x": "bfloat16",
             "w": "e2m1/16:ue4m3:amax@bits/rows", "out": "bfloat16", "target": "cpu",
             **changes}  # fmt: skip
    return Problem(**facts)
