"""`blockscale prove`: every kernel of a GPU, what fails and why, and the report to send in."""

import json

import pytest
import torch
from typer.testing import CliRunner

import blockscale.runtime
from blockscale import cli, ops
from blockscale.kernels import KERNELS
from blockscale.ops.proof import apart, standing, subject
from blockscale.runtime import proven
from ops.planted import FAKE, Planted, last_value


def run(*args):
    return CliRunner().invoke(
        cli.commands, ["prove", *args], catch_exceptions=False, env={"COLUMNS": "200"}
    )


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A GPU whose memory is the CPU's, with one kernel that works and one that does not."""
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(standing, "locate", lambda device: torch.device("cpu"))
    monkeypatch.setattr(apart, "COMMAND", (str(tmp_path / "no-such-program"),))
    monkeypatch.setattr(subject, "_ROWS", (1, 7))
    monkeypatch.setattr(subject, "_ROWS_OF_LARGER", ())
    monkeypatch.setattr(blockscale.runtime, "device_of", lambda device: FAKE)
    monkeypatch.setattr(blockscale.runtime, "resolve_device", lambda device: torch.device("cpu"))
    kernels = (Planted("wrong", last_value), Planted("right"), KERNELS["matmul"][-1])
    monkeypatch.setitem(KERNELS, "matmul", kernels)
    standing.forget()
    yield
    standing.forget()
    ops.choose.cache_clear()


def test_what_works_and_what_fails_is_told_and_kept():
    result = run("--verb", "matmul", "--format", "nvfp4")
    assert result.exit_code == 0
    assert "4 proofs, 2 failed" in result.output
    assert "matmul by wrong of x bfloat16, w e2m1" in result.output
    assert "values are wrong" in result.output
    assert {(each.kernel, bool(each.failure)) for each in proven.proofs().values()} == {
        ("right", False),
        ("wrong", True),
    }


def test_the_report_is_what_to_send_in():
    report = json.loads(run("--verb", "matmul", "--format", "mxfp4", "--json").stdout)
    assert report["target"] == "sm_100"
    assert report["versions"]["torch"] == torch.__version__
    assert {each["state"] for each in report["proofs"] if each["kernel"] == "right"} == {"proven"}
    failed = [each for each in report["proofs"] if each["kernel"] == "wrong"]
    assert failed
    assert all("values are wrong" in each["failure"] for each in failed)


def test_names_are_checked():
    with pytest.raises(ValueError, match="there is no verb 'matmull'; use matmul, gated_matmul"):
        run("--verb", "matmull")
    with pytest.raises(ValueError, match="nvfp5"):
        run("--format", "nvfp5")


def test_a_cpu_needs_no_proof(monkeypatch):
    monkeypatch.setattr(blockscale.runtime, "device_of", standing.device_of)
    with pytest.raises(ValueError, match="cpu needs no proof: CPU kernels are tested on CPUs"):
        run("--device", "cpu")
