"""`blockscale tune`: help, success, failure, what is kept, and removing it."""

import sys

import pytest
import torch
from typer.testing import CliRunner

from blockscale import cli, ops
from blockscale.kernels import KERNELS
from blockscale.ops.tuning import contest, stored
from blockscale.runtime import tuned
from checkpoint.models import llama, write_model
from ops.tuning.fakes import Clock, Fake


def run(*args):
    return CliRunner().invoke(
        cli.commands, ["tune", *map(str, args)], catch_exceptions=False, env={"COLUMNS": "200"}
    )


def forget():
    tuned.forget()
    ops.choose.cache_clear()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BLOCKSCALE_TUNED")
    forget()
    yield tmp_path / "cache" / "tuned"
    forget()


@pytest.fixture
def fake(monkeypatch):
    """Three ways to multiply, the second of which takes half the time of the first."""
    clock = Clock()
    kernel = Fake(clock, 4, 8, 2)
    for verb in KERNELS:
        if verb.endswith("matmul"):
            monkeypatch.setitem(KERNELS, verb, (kernel, KERNELS[verb][-1]))
    monkeypatch.setattr(contest, "CpuStopwatch", clock)
    monkeypatch.setattr(contest, "ring_bytes", lambda device: 1)
    ops.choose.cache_clear()
    return kernel


def test_help():
    out = run("--help").output
    for word in ("--shape", "--rows", "--show", "--clear", "--jobs", "--device"):
        assert word in out


def test_shapes(fake, folder):
    out = run("--shape", "48x64", "--shape", "32 x 128", "--rows", "1,2", "--device", "cpu").stdout
    lines = out.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("matmul m=1 n=48 k=64, w e2m1/16:ue4m3:amax@")
    assert lines[0].endswith(": 25.00 us by rule, 12.50 us at best, 2.00x: fake with speed 8")
    assert "4 products on " in lines[4]
    assert lines[4].endswith(": 4 run faster")
    assert lines[5].startswith(f"kept in {folder}")
    assert len(tuned.results()) == 4
    out = (
        CliRunner()
        .invoke(cli.commands, ["explain", "2", "48", "64"], catch_exceptions=False)
        .output
    )
    assert "runs     fake with speed 8" in out
    assert "chosen   tuned on " in out


def test_every_time_is_told_if_asked_for(fake):
    fake.wrong = (8,)
    out = run("--shape", "48x64", "--rows", 2, "--device", "cpu", "--verbose").output
    assert "25.00 us fake with speed 4 (the rule's choice)" in out
    assert "50.00 us fake with speed 2" in out
    assert "left out   fake with speed 8: 1 of 96 values are wrong" in out
    out = run("--shape", "48x64", "--rows", 2, "--device", "cpu").output
    assert "of 2 ways none is 2% faster: fake with speed 4 (1 left out: --verbose says why)" in out
    assert "0 run faster" in out


def test_experts_gates_and_formats(fake):
    options = ["--experts", 4, "--gated", "--activation", "gelu", "--format", "mxfp4"]
    options += ["--dtype", "float16", "--x-format", "mxfp8"]
    out = run("--shape", "48x64", "--rows", 3, "--device", "cpu", *options).stdout
    assert out.startswith("grouped_gated_matmul m=3 n=48 k=64 experts=4, w e2m1/32:e8m0@")
    (kept,) = tuned.results().values()
    assert kept.problem["x"] == "e4m3/32:e8m0@bits/rows"
    assert kept.problem["out"] == "float16"


def test_a_checkpoint(fake, tmp_path):
    source = write_model(tmp_path / "source", llama(2))
    command = ["quantize", str(source), str(tmp_path / "model"), "--format", "nvfp4"]
    CliRunner().invoke(cli.commands, command, catch_exceptions=False)
    out = run(tmp_path / "model", "--rows", "1,2", "--device", "cpu").output
    assert "8 products on " in out  # four shapes of weights
    assert {each.problem["m"] for each in tuned.results().values()} == {1, 2}
    with pytest.raises(ValueError, match="holds no quantised weights"):
        run(tmp_path / "source", "--device", "cpu")


def test_showing_what_is_kept(fake, folder, monkeypatch):
    assert run("--show").stdout == f"{folder}: 0 results\n"
    run("--shape", "48x64", "--rows", "16,2", "--device", "cpu")
    lines = run("--show").output.splitlines()
    assert lines[0] == f"{folder}: 2 results"
    assert lines[2].endswith("(cpu)")
    assert [line.split()[1] for line in lines[3:]] == ["m=2", "m=16"]  # by number
    assert "25.00 us by rule, 12.50 us at best" in lines[3]
    assert "used, 2.00x: fake speed=8" in lines[3]
    monkeypatch.setenv("BLOCKSCALE_TUNED", "0")
    assert "2 results, none of which is used: BLOCKSCALE_TUNED=0" in run("--show").output
    out = CliRunner().invoke(cli.commands, ["doctor"], catch_exceptions=False).output
    assert f"tuned         {folder}: 2 results, none" in out


def test_showing_why_something_is_not_used(fake, monkeypatch):
    run("--shape", "48x64", "--rows", 2, "--device", "cpu")
    monkeypatch.setattr(ops, "source_hash", lambda target: "changed")
    assert "not used, since the kernels have changed" in run("--show").output
    monkeypatch.setattr(stored, "device_names", lambda target: ["another"])
    assert "not used on this machine" in run("--show").output


def test_a_gain_that_is_too_small_is_shown(fake):
    fake.listed = [type(fake.listed[0])(speed) for speed in (100, 101)]
    run("--shape", "48x64", "--rows", 2, "--device", "cpu")
    assert "not used, since the gain is too small" in run("--show").output


def test_clearing(fake, folder):
    run("--shape", "48x64", "--rows", "1,2", "--device", "cpu")
    assert run("--clear").stdout == "removed 2 results\n"
    assert run("--show").stdout == f"{folder}: 0 results\n"
    assert run("--clear").stdout == "removed 0 results\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give one of a checkpoint, --shape, --show and --clear"),
        (("--shape", "48x64", "--show"), "give one of"),
        (("--shape", "48x"), "give n x k of a weight, as in 14336x4096"),
        (("--shape", "0x64"), "give n x k"),
        (("--shape", "48x65"), "divisible by 16, got 65"),
        (("--shape", "48x64", "--rows", "0"), "give numbers of rows such as 1,2,4"),
        (("--shape", "48x64", "--dtype", "int8"), "use one of float32, bfloat16, float16"),
        (("--shape", "48x64", "--format", "fp3"), "fp3"),
        (("--shape", "48x64", "--device", "meta"), "meta"),
        (("no such folder",), "no such folder"),
    ],
)
def test_failing(options, said, monkeypatch, capsys):
    """As a user runs it: one line on standard error, and exit status 2."""
    options = ("--device", "cpu", *options) if "--device" not in options else options
    monkeypatch.setattr(sys, "argv", ["blockscale", "tune", *options])
    with pytest.raises(SystemExit) as stop:
        cli.app()
    assert stop.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_is_the_cpu(fake):
    assert run("--shape", "48x64", "--rows", 2).exit_code == 0
    with pytest.raises(RuntimeError, match="sees no CUDA device"):
        run("--shape", "48x64", "--device", "cuda")
