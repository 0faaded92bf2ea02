"""The benchmark of a model's layers runs, checks what it times, and stores it."""

import json

import pytest

from bench import model_gpu

pytest.importorskip("transformers")
SMALL = "--device cpu --layers 1 --hidden 128 --prefill 8,16 --training 8 --decode 1,2 --rounds 2"


def test_rivals_are_timed_and_stored(tmp_path, capsys):
    out = tmp_path / "new" / "run.json"
    assert model_gpu.main([*SMALL.split(), "--out", str(out)]) == 0
    times = json.loads(out.read_text())["milliseconds"]
    assert len(times) == 2 + 1 + 2
    for found in times.values():
        assert found.keys() == {"bfloat16", "nvfp4", "kbit4"}
        assert all(each > 0 for each in found.values())
    assert "gradients of nvfp4" in capsys.readouterr().out


def test_wrong_results_are_not_timed(monkeypatch):
    monkeypatch.setattr(model_gpu, "_FARTHEST", 0.0)
    with pytest.raises(RuntimeError, match="results of nvfp4 are wrong"):
        model_gpu.main(SMALL.split())
