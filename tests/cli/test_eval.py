"""`blockscale eval`: the figures, the table, the picture, and how it fails."""

import json
import math
import sys

import pytest
import torch
from typer.testing import CliRunner

from blockscale import cli
from blockscale.models import load_model, load_tokenizer
from models.tiny import text, write_tiny

pytest.importorskip("transformers")
TOKENS = 65


def run(*args):
    result = CliRunner().invoke(
        cli.commands, ["eval", *map(str, args)], catch_exceptions=False, env={"COLUMNS": "160"}
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def failing(monkeypatch, capsys, *args):
    monkeypatch.setattr(sys, "argv", ["blockscale", "eval", *map(str, args)])
    with pytest.raises(SystemExit) as stop:
        cli.app()
    err = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in err
    assert stop.value.code == 2
    return err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("tiny") / "model")
    (folder / "text").write_text(text(TOKENS))
    return folder


@pytest.fixture
def text_options(folder):
    return "--text", folder / "text", "--tokens", TOKENS, "--dtype", "float32"


@pytest.fixture
def quantised(folder, tmp_path):
    command = ["quantize", folder, tmp_path / "small", "--format", "nvfp4", "--scale", "mse"]
    CliRunner().invoke(cli.commands, [str(part) for part in command], catch_exceptions=False)
    return tmp_path / "small"


def test_help():
    out = run("--help")
    for option in (
        "--format",
        "--x-format",
        "--reference",
        "--text",
        "--tokens",
        "--window",
        "--out",
        "--json",
    ):
        assert option in out


def test_perplexity_is_that_of_the_model(folder, text_options):
    (row,) = json.loads(run(folder, *text_options, "--json"))
    model, tokenizer = load_model(folder, torch.float32), load_tokenizer(folder)
    ids = torch.tensor([tokenizer((folder / "text").read_text())["input_ids"]])
    with torch.inference_mode():
        loss = model(input_ids=ids, labels=ids).loss
    assert row["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert row["tokens"] == TOKENS - 1
    assert (row["ratio"], row["divergence"]) == (1, 0)


def test_formats_are_compared_with_the_original(folder, text_options):
    formats = ("--format", "mxfp8", "--format", "*.down_proj=kbit4,kbit2")
    rows = json.loads(run(folder, *text_options, *formats, "--window", 16, "--json"))
    original, fine, coarse = rows
    assert [row["name"] for row in rows] == ["original", "mxfp8", "*.down_proj=kbit4,kbit2"]
    assert 0 < fine["divergence"] < coarse["divergence"] / 4
    for row in rows:
        assert row["ratio"] == pytest.approx(row["perplexity"] / original["perplexity"])
    assert fine["ratio_error"] < original["perplexity_error"] / original["perplexity"]
    table = run(folder, *text_options, *formats, "--window", 16)
    assert "mxfp8" in table
    assert f"{coarse['divergence']:.4f} ± {coarse['divergence_error']:.4f}" in table


def test_a_quantised_folder_beside_its_source(folder, quantised, text_options):
    rows = json.loads(run(quantised, "--reference", folder, *text_options, "--json"))
    assert [row["name"] for row in rows] == ["original", "small"]
    assert rows[1]["divergence"] > 0
    assert rows[1]["bits_per_weight"] == pytest.approx(4.5, abs=0.05)
    (alone,) = json.loads(run(quantised, *text_options, "--json"))
    assert alone["perplexity"] == pytest.approx(rows[1]["perplexity"])
    assert alone["divergence"] is None


@pytest.mark.parametrize("name", ["original", "nvfp4", "small"])
def test_a_folder_is_judged_as_itself_whatever_it_is_called(
    folder, quantised, text_options, monkeypatch, name
):
    """As the reference, as a copy, or by a path that has no name."""
    moved = quantised.rename(quantised.with_name(name))
    monkeypatch.chdir(moved)
    copies = ("--reference", folder, *text_options, "--format", "nvfp4", "--json")
    original, stored, copy = json.loads(run(".", *copies))
    called = "small" if name == "small" else str(moved)
    assert [each["name"] for each in (original, stored, copy)] == ["original", called, "nvfp4"]
    assert (original["bits_per_weight"], original["divergence"]) == (32, 0)
    assert stored["bits_per_weight"] < 5
    assert stored["divergence"] > 0
    (alone,) = json.loads(run(".", *text_options, "--json"))
    assert alone["name"] == name


def test_inputs_of_quantised_layers_alone_are_quantised(folder, quantised, text_options):
    plain, stored = json.loads(run(quantised, "--reference", folder, *text_options, "--json"))
    int8 = ("--x-format", "int8", "--json")
    same, rounded = json.loads(run(quantised, "--reference", folder, *text_options, *int8))
    assert same["perplexity"] == plain["perplexity"]
    assert rounded["divergence"] != stored["divergence"]
    (alone,) = json.loads(run(quantised, *text_options, *int8))
    assert alone["perplexity"] == pytest.approx(rounded["perplexity"])
    copies = ("--format", "nvfp4", "--json")
    _, exact = json.loads(run(folder, *text_options, *copies))
    original, copy = json.loads(run(folder, *text_options, *copies, "--x-format", "int8"))
    assert original["perplexity"] == plain["perplexity"]
    assert copy["divergence"] != exact["divergence"]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture(folder, text_options, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / f"quality.{suffix}"
    run(folder, *text_options, "--format", "kbit4", "--window", 16, "--out", path)
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("no-such-folder",), "no-such-folder: no such folder"),
        ((".",), "is not a model: it has no config.json"),
        (("MODEL", "--format", "nvpf4"), "did you mean 'nvfp4'?"),
        (("MODEL", "--text", "short"), "the text has only 2 tokens and 20000 are wanted"),
        (("MODEL", "--text", "word"), "has 1 of the 2 tokens that predicting takes"),
        (("MODEL", "--text", "nowhere"), "No such file"),
        (("MODEL", "--tokens", 1), "Invalid value for '--tokens'"),
        (("MODEL", "--tokens", 9, "--stride", 999), "windows of 512 tokens cannot move by 999"),
        (("MODEL", "--reference", "nowhere", "--tokens", 9), "nowhere: no such folder"),
        (("MODEL", "--tokens", 9, "--x-format", "int8"), "are not quantised"),
        (("MODEL", "--out", "x.gif"), "must be .png or .svg, got 'x.gif'"),
        (("MODEL", "--tokens", 9, "--out", "x.png"), "there is nothing to draw"),
        (("SMALL", "--tokens", 9, "--format", "kbit4"), "is quantised already"),
        (("MODEL", "--tokens", 9, "--reference", "SMALL"), "is quantised itself"),
    ],
)
def test_bad_arguments_are_one_clear_error(
    args, message, folder, quantised, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("low bit")
    (tmp_path / "word").write_text("low")
    places = {"MODEL": folder, "SMALL": quantised}
    assert message in failing(monkeypatch, capsys, *(places.get(arg, arg) for arg in args))


def test_no_tokenizer(tmp_path, monkeypatch, capsys):
    bare = write_tiny(tmp_path / "bare", tokenizer=False)
    assert "has no tokenizer" in failing(monkeypatch, capsys, bare)
