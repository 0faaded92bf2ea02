"""The profile of a token has all of its parts."""

import pytest
import torch

import ways
from bench import token_profile

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)


def test_parts_of_a_token(capsys):
    before = torch.get_num_threads()
    try:
        small = "--layers 2 --hidden 256 --vocabulary 128 --tokens 2 --threads 1,2"
        assert token_profile.main(small.split()) == 0
    finally:
        torch.set_num_threads(before)
    printed = capsys.readouterr().out
    parts = ("the token", "all layers", "head", "Python and torch", "q, k, v, alone", "o, alone")
    for part in (*parts, "gate, up, alone", "down, alone", "layers of a tiny model"):
        assert part in printed
    assert "2 threads" in printed


def test_parts_add_up_to_the_token():
    model = token_profile.optimized(
        token_profile.shape_of(2, 256, 128), token_profile.bs.KBIT4, None
    )
    parts = token_profile._profile(model, model, 2, clock=iter(range(10**9)).__next__)
    rest = sum(parts[name] for name in ("all layers", "head", "Python and torch"))
    assert parts["the token"] == pytest.approx(rest)
