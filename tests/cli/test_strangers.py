"""What people give by mistake: each is one line that says what is wrong and what to do."""

import json
import shutil
import subprocess
import sys
import warnings

import pytest

from blockscale import cli
from models.tiny import write_tiny

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model", tie_word_embeddings=True)


@pytest.fixture
def place(model, tmp_path, monkeypatch):
    """A folder with a model, damaged copies of it, and files that are no models."""
    (tmp_path / "model").symlink_to(model, target_is_directory=True)
    (tmp_path / "file").write_text("hello")
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    for name, content in {
        "config.json": json.dumps({"model_type": "llama", "hidden_size": "wide"}),
        "tokenizer.json": "{}",
    }.items():
        shutil.copytree(model, tmp_path / f"bad {name}")
        (tmp_path / f"bad {name}" / name).write_text(content)
    monkeypatch.chdir(tmp_path)


def failing(monkeypatch, capsys, *args):
    """Standard error of a command that fails."""
    monkeypatch.setattr(sys, "argv", ["blockscale", *map(str, args)])
    with pytest.raises(SystemExit) as stop:
        cli.app()
    assert stop.value.code == 2
    return " ".join(capsys.readouterr().err.split())


EVAL = ("eval", "model", "--tokens", 9)
QUANTIZE = ("quantize", "model", "new", "--format", "nvfp4", "--scale", "mse")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("generate", "file", "--prompt", "x"), "file is a file: give the folder of the model"),
        (
            ("generate", "bad config.json", "--prompt", "x"),
            "bad config.json/config.json: Validation error for field 'hidden_size'",
        ),
        (
            ("generate", "bad tokenizer.json", "--prompt", "x"),
            "the tokenizer of bad tokenizer.json cannot be read: KeyError",
        ),
        (("generate", "model", "--prompt", "x", "--device", "gpu"), "use cpu, cuda, or one GPU"),
        (("explain", 1, 16, 16, "--device", ""), "device '': use cpu, cuda, or one GPU"),
        ((*EVAL, "--text", "model"), "model is a folder: give a text file"),
        ((*EVAL, "--text", "bytes"), "bytes is no text: byte 128 is not UTF-8"),
        ((*EVAL, "--out", "file/x.png"), "--out file/x.png: file is no folder"),
        ((*QUANTIZE, "--importance", "model"), "model is a folder: name a safetensors file"),
        ((*QUANTIZE, "--save-importance", "model"), "model is a folder: name a file in it"),
        (("warmup", "nowhere", "--target", "sm_90"), "nowhere: no such file or folder"),
        (("warmup", "model", "--target", "hopper"), "no GPU 'hopper' is known"),
        (("explain", "1", "64", "64", "--gpu", "h300"), "no GPU 'h300' is known"),
        (("explain", "1", "64", "64", "--gpu", "h200", "--device", "cuda"), "give one of them"),
    ],
)
@pytest.mark.usefixtures("place")
def test_the_reason_is_the_right_one(args, message, monkeypatch, capsys):
    assert message in failing(monkeypatch, capsys, *args)


def test_memory_that_is_refused_is_no_traceback(monkeypatch, capsys):
    def refuse():
        raise MemoryError("64 TB were refused")

    monkeypatch.setattr(cli, "commands", refuse)
    assert failing(monkeypatch, capsys) == "error: 64 TB were refused"


def test_a_defect_keeps_its_traceback(monkeypatch):
    def defect():
        raise AssertionError

    monkeypatch.setattr(cli, "commands", defect)
    with pytest.raises(AssertionError):
        cli.app()


def test_a_warning_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(cli, "commands", lambda: warnings.warn("[so] it is", stacklevel=1))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        cli.app()
    assert capsys.readouterr().err == "warning: [so] it is\n"


@pytest.mark.parametrize("command", ["", "formats"])
def test_short_help(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["blockscale", *command.split(), "-h"])
    with pytest.raises(SystemExit) as stop:
        cli.app()
    assert stop.value.code == 0
    assert "Usage" in capsys.readouterr().out


def test_a_terminal_without_the_characters(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    command = [sys.executable, "-m", "blockscale", "formats"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "nvfp4" in result.stdout
