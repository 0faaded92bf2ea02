"""The rule: of kernels that predict their time the fastest, and what is predicted on a GPU is
computed. On the CPU a prediction begins with a measurement, which no choice may wait for."""

import pytest
import torch

import blockscale as bs
from blockscale.kernels import KERNELS, Launch, Prediction
from blockscale.kernels.matmul import cpu
from blockscale.ops import choose
from blockscale.problem import Problem
from blockscale.runtime import device_of

PROBLEM = Problem(
    verb="matmul", m=4, n=8, k=64, x="float32", w="e2m1/16:ue4m3:amax@bits/rows", out="float32",
    device=device_of(torch.device("cpu")),
)  # fmt: skip


class Predicts(Launch):
    def __init__(self, microseconds):
        self.microseconds = microseconds

    @property
    def predicted(self):
        return None if self.microseconds is None else Prediction(self.microseconds, "nothing")


class Rival:
    def __init__(self, name, microseconds, refusal=None):
        self.NAME, self.microseconds, self.refusal = name, microseconds, refusal

    def refuses(self, problem):
        return self.refusal

    def configs(self, problem):
        return ["best", "second"]

    def reads(self, format, device):
        return None

    def bind(self, problem, config, weights=(), frozen=False):
        return Predicts(self.microseconds)


@pytest.fixture
def chosen(monkeypatch):
    def among(*kernels):
        monkeypatch.setitem(KERNELS, "matmul", kernels)
        choose.cache_clear()
        return choose(PROBLEM).kernel.NAME

    yield among
    choose.cache_clear()


SLOW, FAST, SILENT = Rival("slow", 9.0), Rival("fast", 2.0), Rival("silent", None)


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ((SLOW, FAST, SILENT), "fast"),
        ((FAST, SLOW, SILENT), "fast"),
        ((SLOW, SILENT, FAST, SILENT), "slow"),
        ((SILENT, FAST, SILENT), "silent"),
        ((SLOW, Rival("refusing", 1.0, "no"), SILENT), "slow"),
        ((SILENT,), "silent"),
    ],
)
def test_the_rule(chosen, kernels, expected):
    assert chosen(*kernels) == expected


def test_a_choice_on_the_cpu_measures_nothing(monkeypatch):
    def measured(*_):
        raise AssertionError("the machine was measured")

    monkeypatch.setattr(cpu, "ceilings", measured)
    choose.cache_clear()
    w = bs.quantize(torch.randn(8, 64), bs.NVFP4).prepare()
    bs.matmul(torch.randn(4, 64), w)
