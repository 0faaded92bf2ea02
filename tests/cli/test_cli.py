"""Every command: help, success, failure."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from typer.testing import CliRunner

import blockscale as bs
from blockscale import cli
from blockscale.runtime import load_native

runner = CliRunner()


def invoke(*args):
    return runner.invoke(cli.commands, [str(arg) for arg in args])


def failing(monkeypatch, capsys, *args):
    """The command as a user runs it: exit status and what stands on standard error."""
    monkeypatch.setattr(sys, "argv", ["blockscale", *map(str, args)])
    with pytest.raises(SystemExit) as stop:
        cli.app()
    return stop.value.code, " ".join(capsys.readouterr().err.split())


def test_the_command_is_installed():
    out = subprocess.run(
        [sys.executable, "-m", "blockscale", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for command in ("formats", "layout", "explain", "doctor"):
        assert command in out


@pytest.mark.parametrize("command", ["formats", "layout", "explain", "doctor"])
def test_help(command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_formats_lists_all():
    out = invoke("formats").output
    for name in ("nvfp4", "mxfp6_e3m2", "kbit5", "bnb_fp4", "e2m1/16:ue4m3:amax"):
        assert name in out


def test_formats_lists_the_values_of_one():
    out = invoke("formats", "mxfp4").output
    rows = re.findall(r"([01]{4}) . +(-?[\d.]+) ", out)
    assert len(rows) == 16
    assert ("0111", "6") in rows


def test_layout_prints_the_expression_and_draws(tmp_path):
    for suffix in ("svg", "png"):
        out = invoke("layout", "nvfp4", 256, 128, "-o", tmp_path / f"picture.{suffix}").output
        assert "(((32,4),2),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,2048))" in out
        assert "256 x 8 scales" in out
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "picture.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ("tmem", "484 of 512 columns: 2 accumulators of 256 that share 64, 3 sets of 12"),
        ("shared", "Sw<3,4,3> o (8,128):(128,1)"),
    ],
)
def test_layout_draws_the_memories_of_an_sm(memory, said, tmp_path):
    path = tmp_path / "picture.svg"
    out = invoke("layout", "mxfp8", 8192, 8192, "--memory", memory, "-o", path).output
    assert said in " ".join(out.split())
    drawn = path.read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "accumulator 1: columns 192 .. 447" in drawn or memory == "shared"


def test_layout_without_a_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "picture" not in invoke("layout", "mxfp8", 100, 96, "-l", 3, "--no-draw").output
    assert not list(tmp_path.iterdir())
    invoke("layout", "mxfp8", 100, 96)
    assert [path.name for path in tmp_path.iterdir()] == ["layout_mxfp8_100x96.svg"]


def test_names_with_odd_characters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("layout", "e2m1/16:ue4m3:amax", 128, 64).exit_code == 0
    assert "[red]a.PNG" in invoke("layout", "nvfp4", 128, 64, "-o", "[red]a.PNG").output
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"layout_e2m1_16_ue4m3_amax_128x64.svg", "[red]a.PNG"}


def test_version_and_shapes_in_help():
    assert invoke("--version").output.strip() == bs.__version__
    assert "x [m, k] @ w [n, k].T" in " ".join(invoke("explain", "--help").output.split())


def test_explain_and_doctor():
    out = invoke("explain", 4, 256, 512, "--format", "mxfp4", "--x-format", "mxfp8").output
    native = load_native()
    if isinstance(native, str):
        assert f"not      cpu: {native}" in out
        assert "runs     reference" in out
    else:
        assert re.search(rf"runs     cpu with \w+ on {native.isa}, \d+ threads", out)
        assert "could    reference" in out
    assert "flop/byte" in out
    out = invoke("explain", 4, 256, 512, "--format", "mxfp4", "--x-format", "int8").output
    assert isinstance(native, str) or "runs     cpu with int8 on" in out
    gated = invoke("explain", 4, 256, 512, "--gated", "--experts", 8).output
    assert "grouped_gated_matmul m=4 n=256 k=512 experts=8" in gated
    out = invoke("doctor").output
    assert "usable for every format" in out
    assert "BLOCKSCALE_CHECK" in out
    assert "torch" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("formats", "nvpf4"), "error: unknown format 'nvpf4': did you mean 'nvfp4'?"),
        (("layout", "nvfp4", 256, 100), "nvfp4 needs k divisible by 16, got 100"),
        (("layout", "bnb_nf4", 256, 128), "blocked scales are one byte each; bnb_nf4 has f32"),
        (("layout", "nvfp4", 256, 128, "-o", "x.gif"), "must be .svg or .png, got 'x.gif'"),
        (("layout", "nvfp4", 256, 128, "--memory", "tmen"), "did you mean 'tmem'?"),
        (
            ("layout", "nvfp4", 256, 128, "--memory", "tmem", "--gpu", "h200"),
            "sm100_gemm: multiplies by tcgen05, which sm_90 has not",
        ),
        (("layout", "nvfp4", 0, 128), "invalid value for 'rows'"),
        (("explain", 1, 2, 30), "nvfp4 needs w's last dimension divisible by 16, got 30"),
        (("explain", 1, 2, 64, "--dtype", "int8"), "use one of float32, bfloat16, float16"),
        (("explain", "one", 2, 64), "invalid value for 'm'"),
        (("explain", 1, 2, 64, "--device", "cuda:99"), "device"),
        (("explain", 1, 2, 64, "--device", "meta"), "there are no kernels for meta"),
        (("layout", "nvfp4", 256, 128, "-o", "/no/such/folder/x.svg"), "No such file"),
        (("nonsense",), "No such command 'nonsense'"),
        (("layout", "nvfp4", 256, 128, "-o", "/no/such/folder/x.png"), "No such file"),
    ],
)
def test_bad_arguments_are_one_clear_error(args, message, monkeypatch, capsys):
    code, err = failing(monkeypatch, capsys, *args)
    assert code == 2
    assert message.lower() in err.lower()
    assert "Traceback" not in err


def test_no_matplotlib_is_said_with_the_fix(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, err = failing(monkeypatch, capsys, "layout", "nvfp4", 128, 64, "-o", "x.png")
    assert code == 2
    assert "pip install 'blockscale[plots]', or pass --no-draw" in err
