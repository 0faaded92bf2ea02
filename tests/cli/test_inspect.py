"""`blockscale inspect`: the table, the JSON, errors against a source, failures."""

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

import blockscale as bs
from blockscale import cli
from checkpoint.models import llama, write_model


def run(*args):
    result = CliRunner().invoke(
        cli.commands, ["inspect", *map(str, args)], catch_exceptions=False, env={"COLUMNS": "160"}
    )
    assert result.exit_code == 0
    return result.output


@pytest.fixture
def pair(tmp_path):
    """A source, and its quantised copy."""
    source = write_model(tmp_path / "source", llama(1))
    command = ["quantize", str(source), str(tmp_path / "out"), "--format", "nvfp4"]
    CliRunner().invoke(cli.commands, command, catch_exceptions=False)
    return source, tmp_path / "out"


def test_help():
    out = run("--help")
    assert "--source" in out
    assert "--json" in out


def test_the_table_lists_every_tensor_and_the_totals(pair):
    out = run(pair[1])
    assert "(compressed-tensors)" in out
    for name in llama(1):
        assert name in out
    lines = [line for line in out.splitlines() if " nvfp4 " in line]
    assert len(lines) == 8  # seven layers, one total
    assert "(plain)" in run(pair[0])


def test_json_counts_every_byte(pair):
    report = json.loads(run(pair[1], "--json"))
    assert report["dialect"] == "compressed-tensors"
    rows = {row["name"]: row for row in report["tensors"]}
    q = bs.load(pair[1])["model.layers.0.mlp.up_proj.weight"]
    row = rows["model.layers.0.mlp.up_proj.weight"]
    assert row["format"] == "nvfp4"
    assert row["shape"] == [96, 64]
    assert row["bytes"] == q.nbytes
    assert row["bits_per_value"] == q.bits_per_value
    assert rows["lm_head.weight"]["format"] == "bfloat16"
    assert report["formats"]["all"]["bytes"] == sum(row["bytes"] for row in rows.values())
    assert report["formats"]["nvfp4"]["tensors"] == 7


def test_errors_are_those_of_the_dequantised_weights(pair):
    source, target = pair
    rows = json.loads(run(target, "--source", source, "--json"))["tensors"]
    before, after = bs.load(source), bs.load(target)
    for row in rows:
        name = row["name"]
        if not row["quantised"]:
            assert "error" not in row
            continue
        w, q = before[name].double(), after[name].dequantize().double()
        assert row["error"] == pytest.approx(((q - w).norm() / w.norm()).item(), rel=1e-9)
        assert 19 < row["sqnr_db"] < 22
    assert "exact" in run(target, "--source", target)


def test_experts_are_compared_in_panels(tmp_path, monkeypatch):
    from blockscale.checkpoint import compare

    w = torch.randn(3, 10, 64)
    q = bs.quantize(w, bs.KBIT3)
    whole = compare.relative_error(q, w)
    monkeypatch.setattr(compare, "_PANEL", 128)
    assert compare.relative_error(q, w) == pytest.approx(whole, rel=1e-12)
    assert compare.relative_error(torch.ones(2, 4), torch.zeros(2, 4)) == pytest.approx(8**0.5)


def test_a_source_of_another_shape_is_refused(pair, tmp_path, monkeypatch, capsys):
    other = write_model(tmp_path / "other", llama(1, hidden=128))
    monkeypatch.setattr(
        sys, "argv", ["blockscale", "inspect", str(pair[1]), "--source", str(other)]
    )
    with pytest.raises(SystemExit) as stop:
        cli.app()
    assert stop.value.code == 2
    assert "is it the source of this checkpoint?" in " ".join(capsys.readouterr().err.split())


def test_missing_path(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["blockscale", "inspect", str(tmp_path / "no")])
    with pytest.raises(SystemExit) as stop:
        cli.app()
    assert stop.value.code == 2
    assert "no such file or folder" in " ".join(capsys.readouterr().err.split())
