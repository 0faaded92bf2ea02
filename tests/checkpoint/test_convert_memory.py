"""What a conversion holds in memory: a few of the largest tensors, however many there are."""

import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.checkpoint import Settings, convert, plan_conversion, run_plan
from checkpoint.models import write_model


def test_memory_is_bounded_by_the_largest_tensor(tmp_path, monkeypatch):
    """Results in flight never outgrow twice the largest unit, and one being written."""
    tensors = {f"l{i}.weight": torch.randn(32, 64) for i in range(20)}
    tensors["big.weight"] = torch.randn(64, 64)
    source = write_model(tmp_path / "source", tensors)
    plan = plan_conversion(source, Settings(bs.MXFP4, shard_size=10_000))
    largest = max(unit.nbytes for unit in plan.units)
    alive, most = 0, 0
    quick = convert.convert

    def forget(size):
        nonlocal alive
        alive -= size

    def counted(checkpoint, unit, *rest):
        nonlocal alive, most
        alive += unit.nbytes
        most = max(most, alive)
        values = quick(checkpoint, unit, *rest)
        weakref.finalize(values[0].codes, forget, unit.nbytes)
        return values

    monkeypatch.setattr(convert, "convert", counted)
    before = torch.get_num_threads()
    run_plan(plan, tmp_path / "out")
    assert largest <= most <= 3 * largest
    assert torch.get_num_threads() == before


PEAK = """
import sys
from blockscale.checkpoint import Settings, plan_conversion, run_plan
from blockscale.formats import NVFP4

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

few, every, target = sys.argv[1:]
run_plan(plan_conversion(few, Settings(NVFP4, scale="absmax")), target + ".few")
before = peak()
run_plan(plan_conversion(every, Settings(NVFP4, scale="absmax")), target)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say")
def test_the_source_does_not_stay_in_memory(tmp_path):
    """Not as mapped pages either: more tensors of a size take no more than a few of them do."""
    weight = torch.randn(512, 1024).bfloat16()
    tensors = {f"l{i}.weight": weight.clone() for i in range(64)}
    few = dict(list(tensors.items())[:8])
    sources = write_model(tmp_path / "few", few), write_model(tmp_path / "all", tensors, shards=2)
    command = [sys.executable, "-c", PEAK, *map(str, sources), str(tmp_path / "out")]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < len(tensors) * weight.nbytes / 2
