"""The extension that repeats calls: where it is looked for, and what is said where it is not."""

import sysconfig

import pytest
import torch
from typer.testing import CliRunner

from blockscale.cli import commands
from blockscale.runtime import load_replay, replay

load = load_replay.__wrapped__  # afresh at every call


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_REPLAY", "0")
    assert load() == "BLOCKSCALE_REPLAY=0 turns it off"


def test_a_path_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_REPLAY", "/nonexistent/call.so")
    assert load().startswith("none was built (/nonexistent/call.so does not exist): reinstall")


def test_none_was_built(monkeypatch):
    monkeypatch.delenv("BLOCKSCALE_REPLAY", raising=False)
    monkeypatch.setattr(replay, "installed_file", lambda name: None)
    assert load().startswith("none was built: reinstall")


def test_a_file_that_is_no_extension(monkeypatch, tmp_path):
    (tmp_path / "empty.so").write_bytes(b"nothing")
    monkeypatch.setenv("BLOCKSCALE_REPLAY", str(tmp_path / "empty.so"))
    assert load().startswith("it does not load: ")


def test_a_python_with_another_abi(monkeypatch):
    monkeypatch.delenv("BLOCKSCALE_REPLAY", raising=False)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED")
    assert load() == "this Python does not load extensions for CPython's stable ABI"


@pytest.mark.skipif(isinstance(load_replay(), str), reason=str(load_replay()))
def test_a_torch_and_a_file_of_other_versions(monkeypatch):
    monkeypatch.setattr(replay, "_VERSION", 0)
    assert "is of another version" in load()
    monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")
    assert load() == f"torch {torch.__version__} has no C functions for DLPack"


def test_doctor_says_which_it_is():
    found = load_replay()
    told = f"{found}; calls go through Python" if isinstance(found, str) else found.__file__
    out = CliRunner().invoke(commands, ["doctor"], catch_exceptions=False).output
    assert f"replay        {told}" in out
