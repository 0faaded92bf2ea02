"""The race of whole models on a CPU runs, leaves disturbed rounds out, and stores the others."""

import json
import stat
import sys

import pytest

import ways
from bench import model_cpu
from bench.interference import CpuTime

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)
SMALL = "--layers 1 --hidden 256 --vocabulary 128 --prefill 4,8 --tokens 2 --rounds 2 --threads 1"

# Answers as llama.cpp's program does.
LLAMA = f"""#!{sys.executable}
import json
rows = [{{"n_prompt": n, "avg_ts": 10.0 + n}} for n in (4, 8, 0)]
print(json.dumps(rows))
"""


@pytest.fixture
def llama(tmp_path):
    program = tmp_path / "llama-bench"
    program.write_text(LLAMA)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def clock(monkeypatch, stolen):
    """Ten CPU seconds to a round, of which so many are stolen, round by round."""
    times, at = [], CpuTime(0, 0, 0, 0)
    for each in stolen:
        times.append(at)
        at = CpuTime(at.all + 10, at.idle, at.stolen + each, at.own + 10 - each)
        times.append(at)
    monkeypatch.setattr(model_cpu, "cpu_time", lambda: times.pop(0))


def test_disturbed_rounds_are_made_again(tmp_path, monkeypatch, llama, capsys):
    clock(monkeypatch, stolen=[0.1, 3, 0.2])
    out = tmp_path / "new" / "run.json"
    files = ["--llama-bench", str(llama), "--gguf", str(tmp_path / "a.gguf"), "--out", str(out)]
    assert model_cpu.main([*SMALL.split(), "--only", "int8", *files]) == 0
    (run,) = json.loads(out.read_text())["runs"]
    assert run["interference"] == [[pytest.approx(0.01), 0], [pytest.approx(0.02), 0]]
    assert run["rates"].keys() == {"bfloat16", "kbit4, optimize_, int8", "llama.cpp Q4_0"}
    for rates in run["rates"].values():
        assert rates.keys() == {"decode", "prefill 4", "prefill 8"}
        assert all(len(each) == 2 and min(each) > 0 for each in rates.values())
    assert run["rates"]["llama.cpp Q4_0"]["prefill 8"] == [18.0, 18.0]
    assert "stolen 30.0%, other processes 0.0%: thrown away" in capsys.readouterr().out


def test_a_machine_that_is_never_quiet_gets_a_word(monkeypatch):
    clock(monkeypatch, stolen=[3] * 8)
    with pytest.raises(RuntimeError, match="0 of 8 rounds had at most 5% interference, 2 are"):
        model_cpu.main([*SMALL.split(), "--only", "int8"])
