"""The race of whole models on a CPU runs, leaves out what was disturbed, and stores the rest."""

import json
import stat
import sys

import pytest

import ways
from bench import interference, model_cpu
from bench.interference import CpuTime, DisturbedError

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)
SMALL = "--layers 1 --hidden 256 --vocabulary 128 --prefill 4,8 --tokens 2 --rounds 2 --threads 1"

# Answers as llama.cpp's program does.
LLAMA = f"""#!{sys.executable}
import json, sys
print(json.dumps([{{"avg_ts": 10.0 + int(sys.argv[sys.argv.index("-p") + 1])}}]))
"""


@pytest.fixture
def llama(tmp_path):
    program = tmp_path / "llama-bench"
    program.write_text(LLAMA)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def clock(monkeypatch, stolen):
    """Ten CPU seconds to a measurement, of which so many are stolen; the last number goes on."""
    at, left, begins = CpuTime(0, 0, 0, 0), list(stolen), [False]

    def read():
        nonlocal at
        begins[0] = not begins[0]
        if not begins[0]:
            each = left.pop(0) if len(left) > 1 else left[0]
            at = CpuTime(at.all + 10, at.idle, at.stolen + each, at.own + 10 - each)
        return at

    monkeypatch.setattr(interference, "cpu_time", read)
    monkeypatch.setattr(interference, "_GLANCE", 0)


def test_disturbed_measurements_are_made_again(tmp_path, monkeypatch, llama):
    clock(monkeypatch, stolen=[0.1, 3, 0.2])
    out = tmp_path / "new" / "run.json"
    files = ["--llama-bench", str(llama), "--gguf", str(tmp_path / "a.gguf"), "--out", str(out)]
    assert model_cpu.main([*SMALL.split(), "--only", "int8", *files]) == 0
    (run,) = json.loads(out.read_text())["runs"]
    assert run["most_stolen"] == pytest.approx(0.02)
    assert (run["measurements"], run["thrown_away"]) == (2 * 3 * 3, 1)
    assert run["rates"].keys() == {"bfloat16", "kbit4, optimize_, int8", "llama.cpp Q4_0"}
    for rates in run["rates"].values():
        assert rates.keys() == {"decode", "prefill 4", "prefill 8"}
        assert all(len(each) == 2 and min(each) > 0 for each in rates.values())
    assert run["rates"]["llama.cpp Q4_0"]["prefill 8"] == [18.0, 18.0]


def test_a_machine_that_is_never_quiet_gets_a_word(monkeypatch):
    clock(monkeypatch, stolen=[3])
    with pytest.raises(DisturbedError, match=r"more than 5% of the CPUs \(30\.0% stolen"):
        model_cpu.main([*SMALL.split(), "--only", "int8", "--patience", "0"])


def test_rounds_before_a_disturbance_count(monkeypatch, capsys):
    clock(monkeypatch, stolen=[0] * 7 + [3])
    assert model_cpu.main([*SMALL.split(), "--only", "int8", "--patience", "0"]) == 0
    assert "1 rounds instead of 2" in capsys.readouterr().out


def test_an_interruption_loses_one_number_of_threads(tmp_path, monkeypatch):
    clock(monkeypatch, stolen=[0] * 2 * 2 * 3 + [3])  # rounds, rivals and works of the first
    out = tmp_path / "run.json"
    arguments = [*SMALL.split()[:-1], "1,1", "--only", "int8", "--patience", "0"]
    with pytest.raises(DisturbedError):
        model_cpu.main([*arguments, "--out", str(out)])
    assert [run["threads"] for run in json.loads(out.read_text())["runs"]] == [1]
