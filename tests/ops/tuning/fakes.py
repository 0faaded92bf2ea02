"""Kernels and a clock for tests of tuning: times are invented, results are not."""

from dataclasses import dataclass
from functools import partial

import torch

from blockscale import ops
from blockscale.kernels import Config as BaseConfig
from blockscale.kernels import FunctionLaunch
from blockscale.kernels.matmul import reference
from blockscale.problem import Problem
from blockscale.runtime import device_of, tuned

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Config(BaseConfig):
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
        self.capturable, self.builds = True, lambda config: []
        self.launched, self.met, self.frozen = [], [], set()

    def refuses(self, problem):
        return self.refusal

    def configs(self, problem):
        return self.listed

    def reads(self, format, device):
        return None

    def bind(self, problem, config, weights=(), frozen=False):
        if weights:
            self.frozen.add(frozen)
        return FakeLaunch(self, problem, config, weights)

    def run(self, problem, config, weights, *tensors):
        _, _, group_sizes, _ = tensors
        self.launched.append(config.speed)
        self.met.append((weights[0].codes.data_ptr(), group_sizes))
        self.clock.now += 1e-4 / config.speed
        if config.speed in self.error:
            raise self.error[config.speed]
        reference.bind(problem, reference.configs(problem)[0], weights)(*tensors)
        if config.speed in self.wrong:
            tensors[-1][-1, -1] += 1


class FakeLaunch(FunctionLaunch):
    def __init__(self, fake, problem, config, weights):
        super().__init__(
            partial(fake.run, problem, config, weights),
            builds=lambda: fake.builds(config),
            is_capturable=fake.capturable,
        )


def problem(**changes):
    facts = {"verb": "matmul", "m": 2, "n": 48, "k": 64, "x": "bfloat16",
             "w": "e2m1/16:ue4m3:amax@bits/rows", "out": "bfloat16",
             "device": device_of(CPU), **changes}  # fmt: skip
    return Problem(**facts)


def tune(clock, wanted=None, **options):
    return ops.tune(wanted or problem(), CPU, clock=clock, **options)


def chosen(**changes):
    return ops.choose(problem(**changes))


def forget():
    """As a new process would."""
    tuned.forget()
    ops.choose.cache_clear()
