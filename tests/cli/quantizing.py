"""`blockscale quantize` as a user runs it, and what it has written."""

import sys

import pytest
from typer.testing import CliRunner

import blockscale as bs
from blockscale import cli
from blockscale.checkpoint import load


def run(*args):
    return CliRunner().invoke(cli.commands, ["quantize", *map(str, args)], catch_exceptions=False)


def failing(monkeypatch, capsys, *args):
    """What stands on standard error, in one line."""
    monkeypatch.setattr(sys, "argv", ["blockscale", "quantize", *map(str, args)])
    with pytest.raises(SystemExit) as stop:
        cli.app()
    err = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in err
    assert stop.value.code == 2
    return err


def quantised(folder):
    """Its quantised tensors, by name."""
    return {name: value for name, value in load(folder).items() if isinstance(value, bs.QTensor)}
