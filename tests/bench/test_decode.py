"""The decoding benchmark runs, and stores what it prints."""

import json

import pytest

from bench import decode, decode_tables
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
    assert run["model"] == str(folder)
    table = decode_tables.decoding_table({**run, "commit": "abc", "dirty": True})
    assert "commit abc with changes" in table
    assert len(table.splitlines()) == 4 + len(run["rivals"])


def test_sizes_are_those_that_are_named():
    for path in decode_tables.FOLDER.glob("*.json"):
        run = json.loads(path.read_text())
        named = path.stem.rpartition("_")[2]
        assert run["model"] == decode._SIZES[named]
        assert run["weights"] == pytest.approx({"135m": 135e6, "1b": 1e9}[named], rel=0.05)
