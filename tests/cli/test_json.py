"""`--json`: every command has it, and standard output then holds one JSON value alone."""

import json
import math

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from blockscale import cli
from blockscale.cli.output import Output
from blockscale.formats import CATALOGUE
from models.tiny import text, write_tiny

COMMANDS = get_command(cli.commands).commands


def run(*args):
    """The JSON value, and what else was said."""
    command = [*map(str, args), "--json"]
    result = CliRunner().invoke(cli.commands, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), result.stderr


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("transformers")
    folder = write_tiny(tmp_path_factory.mktemp("tiny") / "model")
    (folder / "text").write_text(text(33))
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_it(name):
    (option,) = [each for each in COMMANDS[name].params if "--json" in each.opts]
    assert option.is_flag


def test_formats():
    found, _ = run("formats")
    assert [each["name"] for each in found] == list(CATALOGUE)
    found, said = run("formats", "mxfp8")
    assert len(found["values"]) == 256
    assert found["values"][0x7F] is None  # NaN has no place in JSON
    assert (found["block"], found["tensor_scale"], said) == (32, None, "")


def test_layout(tmp_path):
    found, _ = run("layout", "nvfp4", 200, 96, "--no-draw")
    assert (found["padded_scales"], found["bytes"], found["picture"]) == ([256, 8], 2048, None)
    assert found["offsets"]["1"][:2] == [16, 17]
    found, _ = run("layout", "nvfp4", 128, 64, "-o", tmp_path / "x.svg")
    assert found["picture"] == str(tmp_path / "x.svg")
    found, _ = run("layout", "nvfp4", 8192, 8192, "--memory", "tmem", "--no-draw")
    assert (found["columns"], found["unshared_columns"]) == (512, 832)
    assert found["regions"][1] == {"name": "set 0, scales of x", "start": 384, "stop": 400}
    found, _ = run("layout", "nvfp4", 8192, 8192, "--memory", "shared", "--no-draw")
    assert found["offsets"]["1"][:3] == [144, 128, 176]


def test_explain():
    found, _ = run("explain", 4, 256, 512, "--format", "mxfp4", "--x-format", "int8")
    assert found["problem"]["k"] == 512
    assert found["kernel"] in [each["kernel"] for each in found["kernels"]]
    assert found["floor_seconds"] == max(found["bytes_seconds"], found["flops_seconds"])


def test_doctor():
    found, _ = run("doctor")
    assert found["versions"]["torch"]
    assert found["environment"]["BLOCKSCALE_CACHE"]["value"]
    cpu = found["devices"][0]
    assert cpu["target"] == "cpu"
    assert cpu["kernels"]["matmul"]["reference"] == "usable for every format"


def test_what_is_kept(tmp_path):
    found, _ = run("cache")
    assert (found["folder"], found["kernels"], found["groups"]) == (str(tmp_path / "cache"), 0, [])
    assert run("cache", "--clear")[0]["removed"] == 0
    assert run("tune", "--show")[0]["results"] == []
    assert run("tune", "--clear")[0] == {"removed": 0}


def test_tune():
    found, said = run("tune", "--shape", "32x64", "--rows", 1, "--device", "cpu")
    (product,) = found["products"]
    assert product["problem"]["n"] == 32
    assert product["trials"][0]["candidate"] == product["rule"]
    assert "matmul m=1 n=32 k=64" in said
    assert "1 products on" not in said  # the report is not said twice


def test_quantize_and_inspect(folder, tmp_path):
    found, said = run("quantize", folder, tmp_path / "q", "--format", "nvfp4", "--scale", "mse")
    assert "measuring the inputs" in said
    assert found["quantised"]["model.layers.0.mlp.down_proj.weight"] == "nvfp4"
    assert "model.norm.weight" in found["kept"]
    assert found["importance_source"] == "random token ids"
    assert (found["files"], found["dropped"]) == (1, {})
    listed, _ = run("inspect", tmp_path / "q", "--source", folder)
    assert listed["formats"]["nvfp4"]["tensors"] == len(found["quantised"])


def test_generate(folder):
    found, said = run("generate", folder, "--prompt", "low bit", "--max-tokens", 3)
    assert found["prompt_tokens"] == 2
    assert 1 <= found["tokens"] <= 3
    assert found["text"] in said
    found, said = run("generate", folder, "--prompt", "low bit", "--max-tokens", 1)
    assert found["tokens_per_second"] is None
    assert "nan" not in said


def test_eval(folder):
    options = ("--text", folder / "text", "--tokens", 33)
    (row,), _ = run("eval", folder, *options)
    assert row["perplexity_error"] is None  # one window
    assert row["perplexity"] > 1


def test_a_failure_leaves_standard_output_empty(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["blockscale", "formats", "nvpf4", "--json"])
    with pytest.raises(SystemExit):
        cli.app()
    out, err = capsys.readouterr()
    assert out == ""
    assert "did you mean 'nvfp4'?" in err


def test_values_become_json(tmp_path, capsys):
    Output(as_json=True).report({"path": tmp_path, 1: (math.inf, True), "none": None})
    written = capsys.readouterr().out
    assert json.loads(written) == {"path": str(tmp_path), "1": [None, True], "none": None}
