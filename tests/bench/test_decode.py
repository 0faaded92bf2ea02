"""The decoding benchmark runs, and stores what it prints."""

import json

import pytest

from bench import decode
from models.tiny import write_tiny

pytest.importorskip("transformers")


def test_rivals_take_turns_and_are_stored(tmp_path, capsys):
    folder = write_tiny(tmp_path / "model")
    options = f"--model {folder} --formats nvfp4,kbit4+int8 --rounds 3 --tokens 2"
    assert decode.main([*options.split(), "--out", str(tmp_path / "new" / "run.json")]) == 0
    run = json.loads((tmp_path / "new" / "run.json").read_text())
    assert {"float32", "nvfp4", "kbit4+int8"} <= run["rivals"].keys()
    assert run["rivals"][run["baseline"]]["ratio"]["median"] == 1
    for rival in run["rivals"].values():
        assert rival["tokens_per_second"]["rounds"] == 3
        assert rival["tokens_per_second"]["median"] > 0
    assert run["rivals"]["nvfp4"]["bits_per_weight"] == pytest.approx(4.5, abs=0.05)
    assert "kbit4+int8" in capsys.readouterr().out
