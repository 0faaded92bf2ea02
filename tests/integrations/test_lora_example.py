"""The example trains, stores and reloads an adapter."""

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

from examples import lora


def test_no_steps_leave_an_adapter_that_adds_nothing(tmp_path, capsys):
    assert lora.main(["--steps", "0", "--out", str(tmp_path / "adapter")]) == []
    out = capsys.readouterr().out
    assert "no steps" in out
    assert "the same bits: True" in out


def test_the_adapter_learns_and_reloads(tmp_path, capsys):
    losses = lora.main(["--steps", "6", "--out", str(tmp_path / "adapter")])
    assert losses[-1] < losses[0]
    assert "the same bits: True" in capsys.readouterr().out
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
