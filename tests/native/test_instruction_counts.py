"""A product of one row takes no more instructions than it did."""

import json

import pytest

from native.counting import COUNTS, compiled_by, count_all, missing

TOLERANCE = 1.03
AGAIN = "python tests/native/counting.py counts again"


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_product_takes_no_more_instructions_than_it_did(tmp_path):
    stored = json.loads(COUNTS.read_text())
    if compiled_by() not in stored:
        pytest.skip(f"no counts of {compiled_by()}: {AGAIN}")
    before, now = stored[compiled_by()], count_all(tmp_path)
    assert now.keys() == before.keys(), AGAIN
    slower = {
        case: f"{before[case]} -> {count}"
        for case, count in now.items()
        if count > TOLERANCE * before[case]
    }
    assert not slower, AGAIN
