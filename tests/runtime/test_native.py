"""The native library: where it is looked for, and what is said where it is not."""

import json
import os

import pytest

import ways
from fresh_process import run_program

PROGRAM = """
import json, torch, blockscale as bs
from blockscale.cli import commands
from blockscale.runtime import load_native
from typer.testing import CliRunner

w, x = bs.quantize(torch.randn(20, 64), bs.NVFP4).prepare(), torch.randn(3, 64, requires_grad=True)
y = bs.matmul(x, w)
y.sum().backward()
native = load_native()
print(json.dumps({
    "native": native if isinstance(native, str) else list(map(str, native[1:])),
    "layout": str(w.layout),
    "close": torch.allclose(y, x @ w.dequantize().T, atol=1e-4),
    "kernel": bs.explain(x, w).kernel,
    "explain": str(bs.explain(x, w)),
    "doctor": " ".join(CliRunner().invoke(commands, ["doctor"]).output.split()),
}))
"""


def run(**environment):
    """A fresh process, with these environment variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("BLOCKSCALE_")}
    done = run_program(PROGRAM, kept | {"COLUMNS": "400"} | environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check_runs_without(told, reason):
    assert told["native"] == reason
    assert told["layout"] == "bits/rows"
    assert told["close"]
    assert told["kernel"] == "reference"
    assert f"not      cpu: {reason}" in told["explain"]
    assert reason in told["doctor"]


def test_it_can_be_turned_off():
    check_runs_without(run(BLOCKSCALE_NATIVE="0"), "BLOCKSCALE_NATIVE=0 turns it off")


def test_a_path_that_does_not_exist():
    check_runs_without(
        run(BLOCKSCALE_NATIVE="/nonexistent/library.so"),
        "no native library was built (/nonexistent/library.so does not exist): "
        "reinstall from source with a C++17 compiler",
    )


def test_a_file_that_is_no_library(tmp_path):
    (tmp_path / "empty.so").write_bytes(b"nothing")
    told = run(BLOCKSCALE_NATIVE=str(tmp_path / "empty.so"))
    assert told["native"].startswith("the native library does not load: ")
    assert told["kernel"] == "reference"
    assert told["close"]


@pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)
def test_an_instruction_set_that_this_cpu_does_not_have():
    path = {"BLOCKSCALE_NATIVE": os.environ.get("BLOCKSCALE_NATIVE", "")}
    reason = f"BLOCKSCALE_ISA=nonsense: this CPU has {', '.join(ways.ISAS)}"
    check_runs_without(run(BLOCKSCALE_ISA="nonsense", **path), reason)


@pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)
def test_the_library_that_is_found_and_the_instruction_set_that_is_asked_for():
    path = {"BLOCKSCALE_NATIVE": os.environ.get("BLOCKSCALE_NATIVE", "")}
    asked = ways.ISAS[0]  # what every CPU of this architecture has
    told = run(BLOCKSCALE_ISA=asked, **path)
    assert told["native"][1] == asked
    assert told["layout"] == "cpu_tiles/cpu_tiles"
    assert told["kernel"] == "cpu"
    assert told["close"]
    assert f" on {asked}, " in told["explain"]
    assert asked in told["doctor"]
