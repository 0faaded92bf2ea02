"""Which products a floor is measured with; what they take is told, so that nothing is timed."""

import sys
from types import SimpleNamespace

import pytest
import torch

import blockscale as bs
from blockscale import ops
from blockscale.runtime import Ceilings, ceilings

CPU = torch.device("cpu")
SECONDS = {torch.float32: 4.0, torch.bfloat16: 32.0, torch.float16: 2.0, torch.int8: 1.0}


@pytest.fixture
def told(monkeypatch):
    """The time of a product is told by the dtype of its result or its operands."""

    def seconds(work, device, repeats):
        result = work()
        if result.dim() == 0:
            return 1.0
        dtype = torch.int8 if result.dtype == torch.int32 else result.dtype
        return SECONDS[dtype] * len(result) / result.shape[-1]

    monkeypatch.setattr(sys.modules[ceilings.__module__], "_best_seconds", seconds)
    on_isa(monkeypatch, "avx512")
    yield
    ceilings.cache_clear()


def on_isa(monkeypatch, isa):
    loaded = SimpleNamespace(isa=isa)
    monkeypatch.setattr(sys.modules[ceilings.__module__], "load_native", lambda: loaded)
    ceilings.cache_clear()


@pytest.mark.parametrize(
    ("dtypes", "fastest"),
    [
        ((torch.float32,), torch.float32),
        ((torch.bfloat16,), torch.float32),  # emulated
        ((torch.float16,), torch.float16),
        ((torch.bfloat16, torch.int8), torch.int8),
    ],
)
def test_the_fastest_of_the_products_counts(told, dtypes, fastest):
    assert ceilings(CPU, *dtypes).flops_per_s == 2 * 512**3 / SECONDS[fastest]


@pytest.mark.parametrize(("isa", "gain"), [("neon", 2), ("dotprod", 4), ("i8mm", 8), ("bf16", 8)])
def test_dot_products_of_bytes_count_where_torch_has_none(told, monkeypatch, isa, gain):
    """torch's own takes half of float32's time here; `neon` has no such instruction."""
    on_isa(monkeypatch, isa)
    monkeypatch.setitem(SECONDS, torch.int8, 2.0)
    found = ceilings(CPU, torch.float32, torch.int8)
    assert found.flops_per_s == 2 * 512**3 * gain / SECONDS[torch.float32]
    assert (f"{gain} times float32's flop/s by {isa}" in found.source) == (isa != "neon")
    assert ceilings(CPU, torch.float32).flops_per_s == 2 * 512**3 / SECONDS[torch.float32]


@pytest.mark.parametrize(
    ("x_format", "integers"), [(None, ()), ("mxfp8", ()), ("int8", (torch.int8,))]
)
def test_rows_in_int8_have_the_rate_of_integers(monkeypatch, x_format, integers):
    asked = []
    module = sys.modules[ops.explain.__module__]
    monkeypatch.setattr(module, "ceilings", lambda *args: asked.append(args) or Ceilings(1.0, 1.0))
    w = bs.quantize(torch.randn(32, 64), bs.KBIT4)
    bs.explain(torch.randn(2, 64, dtype=torch.bfloat16), w, x_format=x_format)
    assert asked == [(CPU, torch.bfloat16, *integers)]


def test_the_product_is_in_the_dtype_of_x_whatever_the_result_is(monkeypatch):
    asked = []
    module = sys.modules[ops.explain.__module__]
    monkeypatch.setattr(module, "ceilings", lambda *args: asked.append(args) or Ceilings(1.0, 1.0))
    w, x = bs.quantize(torch.randn(32, 64), bs.KBIT4), torch.randn(2, 64)
    bs.explain(x.bfloat16(), w, out_dtype=torch.float32)
    bs.explain(x, w, out_dtype=torch.bfloat16)
    assert asked == [(CPU, torch.bfloat16), (CPU, torch.float32)]
