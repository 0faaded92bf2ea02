"""JSON is held against its limits before it is parsed, and parsed as the standard library does."""

import json
import tracemalloc

import pytest

from blockscale.runtime import Limits, parse_json, read_json

LIMITS = Limits(nbytes=2**23, values=1000, depth=8)


def parse(text):
    return parse_json(text, LIMITS, "x.json")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": [1, 2.5, None, True, "b"], "": {"c": []}},
        {"quotes": 'a "b" \\', "brackets": "[[[{{{" * 20, "commas": "," * 2000},
        {"back\\slash": "\\\\\\", "\\": '\\"', "é": "\U0001f600"},
        {"inf": float("inf")},
    ],
    ids=str,
)
@pytest.mark.parametrize("ascii", [True, False])
def test_what_is_within_the_limits_is_parsed(value, ascii):
    text = json.dumps(value, ensure_ascii=ascii)
    assert parse(text.encode()) == value
    assert parse(b"\xef\xbb\xbf" + text.encode()) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"]" * 100, "is not JSON"),
        (b'{"a": "b', "is not JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", "is not JSON"),
        (b'{"a": "\xff"}', "its text is no UTF-8"),
        ('{"a": "b"}'.encode("utf-16"), "its text is no UTF-8"),
        (b'{"a": "\\ud800"}', "its text is no UTF-8"),
        (b"[1]", "must be a JSON object, got list"),
        (b"null", "must be a JSON object, got NoneType"),
        (b"[" * 9 + b"]" * 9, "is nested more than 8 deep"),
        (b'{"a":' * 100_000, "is nested more than 8 deep|values, more than"),
        (b"[" * 100_000, "100,000 values, more than a description can need"),
        (b'{"a": [' + b"0," * 1000 + b"0]}", "1,002 values, more than a description can need"),
        (b'""' * 3000, "3,000 values, more than a description can need"),
        (b" " * (2**23 + 1), "8,388,609 bytes, more than a description can need"),
    ],
)
def test_what_is_not_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=f"^x.json .*({message})"):
        parse(text)


@pytest.mark.parametrize("piece", [b"[],", b"{},", b'{"":0},', b'"",', b"1.5,", b'"\\\\",'])
@pytest.mark.fault(
    "JSON of 8 MB holds millions of values",
    outcome="ValueError after at most four times the file in memory",
)
def test_millions_of_values_are_counted_and_not_made(piece, tmp_path):
    path = tmp_path / "x.json"
    size = LIMITS.nbytes - 20
    path.write_bytes(b'{"a":[' + piece * (size // len(piece)) + b"0]}")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"x.json has .* values, more than"):
            read_json(path, LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 4 * LIMITS.nbytes
    finally:
        tracemalloc.stop()


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(ValueError, match=r"x.json has 8,589,934,592 bytes, more than"):
        read_json(path, LIMITS)
