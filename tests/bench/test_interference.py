"""What others took of the CPUs, out of the system's own counts."""

import pytest

from bench.interference import CpuTime, cpu_time, parse_stat

# user nice system idle iowait irq softirq steal guest guest_nice
STAT = "cpu  400 100 50 300 20 5 5 120 60 0\ncpu0 200 50 25 150 10 2 3 60 30 0\nintr 1"


def test_fields_of_the_system():
    """Guests are counted among users already."""
    found = parse_stat(STAT, own=2.5, ticks=100)
    assert found == CpuTime(all=10.0, idle=pytest.approx(3.2), stolen=1.2, own=2.5)


def test_shares():
    before = CpuTime(all=100, idle=50, stolen=2, own=20)
    after = CpuTime(all=120, idle=51, stolen=3, own=36)
    found = after.interference_since(before)
    assert found.stolen == pytest.approx(1 / 20)
    assert found.others == pytest.approx(2 / 20)
    assert found.both == pytest.approx(3 / 20)


def test_counts_of_ticks_may_lag_behind_those_of_the_process():
    before = CpuTime(all=100, idle=50, stolen=2, own=20)
    assert before.interference_since(before).both == 0
    assert CpuTime(101, 50, 2, 21.01).interference_since(before).others == 0


def test_this_system():
    found = cpu_time()
    if found is None:
        pytest.skip("no /proc/stat")
    assert found.all > found.idle >= 0
    assert found.own > 0
