"""`blockscale generate`: help, success, failure."""

import re
import sys

import pytest
from typer.testing import CliRunner

import blockscale as bs
from blockscale import cli
from models.tiny import WORDS, write_tiny

pytest.importorskip("transformers")


def run(*args):
    result = CliRunner().invoke(
        cli.commands, ["generate", *map(str, args)], catch_exceptions=False, env={"COLUMNS": "160"}
    )
    assert result.exit_code == 0, result.output
    return result


def failing(monkeypatch, capsys, *args):
    monkeypatch.setattr(sys, "argv", ["blockscale", "generate", *map(str, args)])
    with pytest.raises(SystemExit) as stop:
        cli.app()
    err = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in err
    assert stop.value.code == 2
    return err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model", eos_token_id=15)


def test_help():
    out = run("--help").output
    for option in ("--prompt", "--max-tokens", "--format", "--x-format", "--dtype", "--no-chat"):
        assert option in out


def test_the_text_is_on_stdout_and_the_figures_on_stderr(folder):
    result = run(folder, "--prompt", "low bit", "--max-tokens", 5)
    assert set(result.stdout.split()) <= {*WORDS, "<unk>"}
    assert re.search(r"\d tokens, [\d.]+ a second; prompt of 2 read in [\d.]+ s", result.stderr)
    assert re.search(r"MB of weights, 32 bits each .*; [\d,]+ MB of memory", result.stderr)


def test_an_optimised_model_says_what_was_changed(folder):
    result = run(folder, "--prompt", WORDS[3], "--max-tokens", 4, "--format", "kbit4", "--optimize")
    assert "round x to int8" in result.stderr


def test_a_pattern_that_fits_no_layer_is_said(folder):
    with pytest.warns(UserWarning, match="no layer got its format from '\\*.v_porj'"):
        run(folder, "--prompt", "low", "--max-tokens", 1, "--format", "*.v_porj=keep,mxfp8")


def test_a_head_that_is_kept_anyway_is_no_mistake(folder, recwarn):
    run(folder, "--prompt", "low", "--max-tokens", 1, "--format", "*lm_head=keep,mxfp8")
    assert not [each for each in recwarn if "no layer got its format" in str(each.message)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--optimize",), "is not quantised: add a format, as in --format kbit4"),
        (("--format", "nvfp4", "--optimize", "--x-format", "nvfp4"), "leave --x-format nvfp4 out"),
    ],
)
def test_what_optimize_needs_is_said(folder, monkeypatch, capsys, options, message):
    assert message in failing(monkeypatch, capsys, folder, "--prompt", "low", *options)


def test_quantised_on_load_and_by_quantize(folder, tmp_path):
    on_load = run(folder, "--prompt", "low bit", "--max-tokens", 6, "--format", "mxfp8")
    assert "8.25 bits each" in on_load.stderr
    command = ["quantize", folder, tmp_path / "q", "--format", "mxfp8", "--scale", "mse"]
    CliRunner().invoke(cli.commands, [str(part) for part in command], catch_exceptions=False)
    stored = run(tmp_path / "q", "--prompt", "low bit", "--max-tokens", 6, "--dtype", "float32")
    assert "8.25 bits each" in stored.stderr
    assert stored.stdout == on_load.stdout


@pytest.fixture(scope="module")
def stored(folder, tmp_path_factory):
    target = tmp_path_factory.mktemp("stored") / "q"
    command = ["quantize", folder, target, "--format", "kbit4"]
    CliRunner().invoke(cli.commands, [str(part) for part in command], catch_exceptions=False)
    return target


@pytest.mark.parametrize("source", ["stored", "on load"])
def test_inputs_are_quantised_where_asked_for(source, folder, stored, monkeypatch):
    seen = []
    forward = bs.nn.Linear.forward
    monkeypatch.setattr(
        bs.nn.Linear, "forward", lambda self, x: seen.append(self.x_format) or forward(self, x)
    )
    place = (stored,) if source == "stored" else (folder, "--format", "kbit4")
    run(*place, "--prompt", "low bit", "--max-tokens", 2, "--x-format", "int8")
    assert set(seen) == {"int8"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("no-such-folder", "--prompt", "x"), "no-such-folder: no such folder"),
        ((".", "--prompt", "x"), "is not a model: it has no config.json"),
        (("MODEL", "--prompt", "x", "--format", "nvpf4"), "did you mean 'nvfp4'?"),
        (("MODEL", "--prompt", "x", "--dtype", "int4"), "--dtype int4: use one of float32"),
        (("MODEL", "--prompt", "x", "--max-tokens", 0), "Invalid value for '--max-tokens'"),
        (("MODEL", "--prompt", ""), "the prompt has no tokens"),
        (("MODEL", "--prompt", "x", "--x-format", "int8"), "are not quantised"),
        (("STORED", "--prompt", "x", "--x-format", "int9"), "did you mean 'int8'?"),
        (("STORED", "--prompt", "x", "--format", "kbit4"), "is quantised already"),
        (("MODEL",), "Missing option '--prompt'"),
    ],
)
def test_bad_arguments_are_one_clear_error(
    args, message, folder, stored, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    places = {"MODEL": folder, "STORED": stored}
    assert message in failing(monkeypatch, capsys, *(places.get(arg, arg) for arg in args))


def test_no_tokenizer(tmp_path, monkeypatch, capsys):
    bare = write_tiny(tmp_path / "bare", tokenizer=False)
    assert "has no tokenizer" in failing(monkeypatch, capsys, bare, "--prompt", "x")
