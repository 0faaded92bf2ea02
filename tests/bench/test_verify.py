"""A wrong rival is caught, a right one is not, in every dtype."""

import pytest
import torch

from bench.contest import contest, lacks_memory
from bench.results import BASELINE, FAILED, TIMED, WRONG
from bench.rivals.contract import Prepared, Rival, import_failure
from bench.verify import expect, judge

N, K, M = 48, 256, 5


@pytest.fixture
def operands():
    return torch.randn(M, K).bfloat16(), torch.randn(N, K).bfloat16()


class Product(Prepared):
    def __init__(self, w, spoil):
        self.w, self.spoil = w, spoil

    @property
    def nbytes(self):
        return self.w.nbytes

    def copy(self):
        return Product(self.w.clone(), self.spoil)

    def decoded(self):
        return self.w.float()

    def bind(self, x):
        return lambda: self.spoil(x @ self.w.T)


class Named(Rival):
    def __init__(self, name, spoil=lambda y: y):
        self.name, self.spoil = name, spoil

    def prepare(self, w):
        return Product(w, self.spoil)


def raise_for_many(y):
    if len(y) > 1:
        raise RuntimeError("only one row\nand a long story")
    return y


class FakeClock:
    """One microsecond a call, whoever calls."""

    device = "cpu"

    def ring_bytes(self, rivals):
        return 1

    def stopwatch(self, calls):
        assert calls
        return self

    def warm_up(self):
        return 1e-6

    def sample(self):
        return 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_right_product_passes(operands, dtype):
    x, w = operands
    verdict = judge(
        torch.nn.functional.linear(x.to(dtype), w.to(dtype)), expect(x, w.float(), dtype)
    )
    assert verdict.reason == ""
    assert 0 < verdict.error < 0.01


@pytest.mark.parametrize("block", [0, 32])
def test_int8_activations_pass_only_where_they_are_declared(operands, block):
    x, w = operands
    blocks = x.double().unflatten(1, (-1, block or K))
    step = blocks.abs().amax(-1, keepdim=True) / 127
    rounded = ((blocks / step).round() * step).flatten(1)
    y = (rounded @ w.double().T).float()
    assert judge(y, expect(x, w.float(), torch.float32, block)).reason == ""
    assert judge(y, expect(x, w.float(), torch.float32)).reason


def test_one_wrong_scale_of_a_block_is_caught(operands):
    x, w = operands
    wrong = w.clone()
    wrong[7, 32:64] *= 2
    verdict = judge(x @ wrong.T, expect(x, w.float(), torch.bfloat16))
    assert "values are off" in verdict.reason
    assert ", 7]" in verdict.reason


def test_nan_and_a_wrong_shape_are_caught(operands):
    x, w = operands
    expected = expect(x, w.float(), torch.bfloat16)
    y = x @ w.T
    y[2, 3] = float("nan")
    assert "1 of 240 values are off; at [2, 3] nan" in judge(y, expected).reason
    assert "not [5, 48]" in judge(y.T, expected).reason
    assert "NoneType" in judge(None, expected).reason


def test_the_expected_product_does_not_depend_on_panels(operands, monkeypatch):
    x, w = operands
    whole = expect(x, w.float(), torch.bfloat16, 32)
    monkeypatch.setattr("bench.verify._PANEL_ELEMENTS", 7 * K)
    parts = expect(x, w.float(), torch.bfloat16, 32)
    torch.testing.assert_close(parts.product, whole.product)
    torch.testing.assert_close(parts.tolerance, whole.tolerance)


def test_a_wrong_rival_is_reported_and_not_timed():
    rivals = [
        Named(BASELINE),
        Named("wrong", lambda y: 1.5 * y),
        Named("failing", raise_for_many),
    ]
    one, many = contest(N, K, [1, 4], rivals, FakeClock(), 1e-5)
    assert [entry.outcome for entry in one.entries] == [TIMED, WRONG, TIMED]
    assert [entry.outcome for entry in many.entries] == [TIMED, WRONG, FAILED]
    for entry in (one.entry("wrong"), many.entry("wrong")):
        assert entry.time is None
        assert entry.ratio is None
        assert "values are off" in entry.reason
        assert entry.error == pytest.approx(0.5, rel=0.01)
    assert many.entry("failing").reason == "RuntimeError: only one row"
    assert one.entry("failing").ratio.median == 1.0


def test_a_rival_that_cannot_be_timed_is_reported():
    """As one whose call cannot be captured in a graph."""

    class Particular(FakeClock):
        def stopwatch(self, calls):
            if len(calls[0]()) == 2:
                raise RuntimeError("not while capturing")
            return self

    cases = list(contest(N, K, [1, 2], [Named(BASELINE)], Particular(), 1e-5))
    assert [case.entries[0].outcome for case in cases] == [TIMED, FAILED]
    assert cases[1].entries[0].reason == "RuntimeError: not while capturing"


def test_a_rival_can_be_for_some_rows_only():
    few = Named("few")
    few.only_rows = (2,)
    cases = contest(N, K, [1, 2], [Named(BASELINE), few], FakeClock(), 1e-5)
    assert [[entry.rival for entry in case.entries] for case in cases] == [
        [BASELINE],
        [BASELINE, "few"],
    ]


def test_a_rival_that_cannot_prepare_is_reported():
    broken = Named("broken")
    broken.prepare = None
    (case,) = contest(N, K, [2], [Named(BASELINE), broken], FakeClock(), 1e-5)
    assert case.entry("broken").outcome == FAILED
    assert "TypeError" in case.entry("broken").reason


def test_a_shape_beyond_memory_is_refused():
    assert lacks_memory(64, 64, 10**9) == ""
    assert "1.0 GB are free" in lacks_memory(16384, 16384, 10**9)


def test_a_missing_library_is_named():
    assert import_failure("json") == ""
    assert "no_such_library" in import_failure("json", "no_such_library")
