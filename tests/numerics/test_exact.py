"""float64 as the carrier of float32 arithmetic, whatever the machine does with subnormals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.numerics.exact import cast, exponent_of, round_to, widen

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def every_short(dtype):
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_widen_and_cast_roundtrip_every_short_float(dtype):
    x = every_short(dtype)
    again = cast(widen(x), dtype)
    number = ~x.isnan()
    assert torch.equal(again[number].view(torch.int16), x[number].view(torch.int16))
    assert again[~number].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_flushed_subnormals_survive(dtype, flush_denormal):
    x = every_short(dtype)
    number = ~x.isnan()
    assert torch.equal(cast(widen(x), dtype)[number].view(torch.int16), x[number].view(torch.int16))


def test_float32_subnormals_survive_flushing(flush_denormal):
    x = torch.tensor([1, 0x007FFFFF, 0x00800000, -0x7FFFFFFF, -1 << 31], dtype=torch.int32)
    wide = widen(x.view(torch.float32))
    assert wide[0].item() == 2.0**-149
    assert torch.equal(cast(wide, torch.float32).view(torch.int32), x)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(width=64, allow_nan=False), min_size=1, max_size=32))
def test_rounding_to_float32_and_float16_matches_numpy(numbers):
    x = torch.tensor(numbers, dtype=torch.float64)
    for dtype, reference in ((torch.float32, np.float32), (torch.float16, np.float16)):
        with np.errstate(over="ignore"):
            expected = x.numpy().astype(reference)
        got = cast(x, dtype).numpy()
        np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))
        np.testing.assert_array_equal(round_to(x, dtype).numpy(), expected.astype(np.float64))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**16 - 1), st.sampled_from([-1, 0, 1]), st.integers(0, 1))
def test_bfloat16_ties_go_to_even_in_one_rounding(bits, nudge, sign):
    """Halfway between neighbours, and one float64 step beside it: double rounding would fail."""
    low = torch.tensor([bits & 0x7F7E], dtype=torch.int32)
    pair = torch.stack([low, low + 1]).to(torch.int16).view(torch.bfloat16).to(torch.float64)
    middle = pair.mean()
    target = np.nextafter(middle.item(), np.inf * nudge) if nudge else middle.item()
    value = torch.tensor([-target if sign else target], dtype=torch.float64)
    expected = pair[1] if nudge > 0 else pair[0]  # the lower neighbour is even
    assert cast(value, torch.bfloat16).to(torch.float64).abs().item() == expected.item()


def test_nan_is_canonical():
    for dtype, bits in (
        (torch.float32, 0x7FC00000),
        (torch.bfloat16, 0x7FC0),
        (torch.float16, 0x7E00),
    ):
        out = cast(torch.tensor([-torch.nan, torch.nan], dtype=torch.float64), dtype)
        assert out.view(BITS[dtype]).tolist() == [bits, bits]


def test_overflow_is_infinite():
    big = torch.tensor([1e39, -1e39, 65519.9, 65520.0], dtype=torch.float64)
    assert cast(big[:2], torch.float32).tolist() == [torch.inf, -torch.inf]
    assert cast(big[2:], torch.float16).tolist() == [65504.0, torch.inf]


def test_exponents_are_exact():
    x = torch.tensor([1.0, 1.999999, 2.0, 2.0**-149, 0.75, 0.0], dtype=torch.float64)
    assert exponent_of(x).tolist() == [0, 0, 1, -149, -1, -1023]
