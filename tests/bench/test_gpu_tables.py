"""The record of GPUs: JSON and back, tables with and without a run, and the picture."""

from dataclasses import replace

import pytest

from bench import cuda_tables, tables, verbs_tables
from bench.duel import Way, duel
from bench.measurements import Measurement, Report, load, newest_of_each_work
from bench.picture import draw_both
from bench.results import BASELINE, FAILED, TIMED, WRONG, Case, Entry, Run, newest_per_machine
from bench.timing import Spread
from bench.verbs import shown


def even(value):
    return Spread(value, value, value, 5)


def entry(rival, role, us, size, ratio=None):
    return Entry(
        rival=rival,
        role=role,
        outcome="timed" if us else "failed",
        reason="" if us else "RuntimeError: no",
        time=even(us) if us else None,
        ratio=even(ratio) if ratio else None,
        weight_bytes=size,
    )


def case(n, k, m):
    size = n * k
    entries = [
        entry(BASELINE, "rival", 100.0, 2 * size, 1.0),
        entry("humming nvfp4", "rival", None, 0),
        entry("NVFP4", "ours", 40.0, size // 2, 2.5),
        entry("KBIT4", "ours", 50.0, size // 2, 2.0),
        entry("read of 16 bits", "ceiling", 80.0, 2 * size),
        entry("read of 4.5 bits", "ceiling", 25.0, size // 2),
        entry("read of 4.5 bits, alone", "ceiling", 30.0, size // 2),
    ]
    return Case(n=n, k=k, m=m, layers=[], entries=entries)


MACHINE = {
    "cpu": "Example 9000",
    "threads": 16,
    "gpu": "Example GPU",
    "driver": "580.1",
    "l2_bytes": 60_000_000,
    "product_flops_per_second": 7.89e14,
}


@pytest.fixture
def run():
    return Run(
        device="cuda",
        date="2030-01-02T03:04:05+00:00",
        commit="0123456789abcdef",
        dirty=False,
        machine=MACHINE,
        versions={"torch": "2.11.0"},
        settings={},
        missing={"bitsandbytes nf4": "ModuleNotFoundError"},
        cases=[case(n, k, m) for n, k in ((8192, 8192), (64, 128)) for m in (16, 1)],
    )


def test_a_weight_is_compared_with_a_read_of_its_own_size(run):
    first = run.cases[0]
    assert first.percent_of_ceiling(first.entry("NVFP4")) == pytest.approx(100 * 25 / 40)
    assert first.percent_of_ceiling(first.entry(BASELINE)) == pytest.approx(80)
    assert first.percent_of_ceiling(first.entry("humming nvfp4")) is None


def test_a_gpu_is_one_machine_whatever_its_cpu(run):
    other = Run(**{**vars(run), "machine": {**MACHINE, "cpu": "Another"}})
    assert newest_per_machine([run, other]) == [run]
    shape = {"cases": [replace(case, n=case.n + 64) for case in run.cases]}
    assert newest_per_machine([run, replace(other, **shape)])[1].cases == shape["cases"]


def test_the_readme_has_one_large_layer(run):
    text = cuda_tables.speed_tables([run])
    assert "Example GPU (commit " in text
    assert "| 8192 x 8192, M = | 1 | 16 |" in text
    assert "| **NVFP4** | 2.50 | 2.50 |" in text
    assert "| humming nvfp4 | failed | failed |" in text
    assert "64 x 128" not in text


def test_the_full_tables(run):
    text = cuda_tables.performance_tables([run])
    assert "Example GPU, driver 580.1, 60 MB of L2 cache;" in text
    assert "at 789 TFLOPS" in text
    assert "#### 64 x 128" in text
    assert "| **NVFP4** | 40.0 (62%) | 40.0 (62%) |" in text
    assert "| read of 4.5 bits | 25.0 | 25.0 |" in text
    assert "- humming nvfp4 on 64 x 128 at M=1, 16: failed, RuntimeError: no" in text
    assert cuda_tables.READ_PICTURE in text
    assert cuda_tables.SPEED_PICTURE in text


def test_tables_of_cpus_leave_gpus_out(run, monkeypatch):
    monkeypatch.setattr(tables, "stored", lambda: [run])
    assert tables.performance() == tables.NOTHING_STORED
    assert "Example GPU" in cuda_tables.gpu_performance()


def test_without_a_run_the_tables_say_so():
    assert cuda_tables.speed_tables([]) == cuda_tables.NOTHING_STORED
    assert cuda_tables.performance_tables([]) == cuda_tables.NOTHING_STORED
    assert verbs_tables.verbs_tables([]) == verbs_tables.NOTHING_STORED


def test_pictures_are_drawn(run, tmp_path):
    pytest.importorskip("matplotlib")
    draw_both(run, tmp_path / "new")
    for name in (cuda_tables.READ_PICTURE, cuda_tables.SPEED_PICTURE):
        assert (tmp_path / "new" / name).stat().st_size > 10_000


LINE = Measurement(
    work="Experts",
    problem="8 experts",
    name="NVFP4",
    outcome=TIMED,
    time=even(20.0),
    beside=BASELINE,
    other=even(50.0),
    ratio=even(2.5),
    floor=even(10.0),
)


@pytest.fixture
def report():
    failed = Measurement(
        work="Experts", problem="8 experts", name="KBIT4", outcome=FAILED, reason="no"
    )
    host = Measurement(work="Host", problem="idle", name="NVFP4", outcome=TIMED, time=even(7.0))
    return Report(
        date="2030-01-02T03:04:05+00:00",
        commit="feed",
        dirty=True,
        machine=MACHINE,
        versions={},
        measurements=[LINE, failed, host],
    )  # fmt: skip


def test_measurements_round_trip_and_the_newest_counts(report, tmp_path):
    report.store(tmp_path / "b.json")
    assert load(tmp_path / "b.json") == report
    Report(**{**vars(report), "date": "2029-01-01"}).store(tmp_path / "c.json")
    later = Report(
        **{**vars(report), "date": "2031-01-01", "measurements": report.measurements[2:]}
    )
    later.store(tmp_path / "d.json")
    found = newest_of_each_work(tmp_path)
    assert [each.date[:4] for each in found] == ["2030", "2031"]
    assert [len(each.measurements) for each in found] == [2, 1]


def test_measurements_as_tables(report):
    text = verbs_tables.verbs_tables([report])
    assert "**Experts** (Example GPU, driver 580.1; commit feed with changes, 2030-01-02)" in text
    assert "| 8 experts | NVFP4 | 20.0 | 50.0 | 2.50 | 10.0 |  |" in text
    assert "| 8 experts | KBIT4 | failed |  |  |  | no |" in text
    assert "| idle | NVFP4 | 7.0 |" in text


def test_a_measurement_in_one_line():
    assert shown(LINE) == (
        "8 experts: NVFP4 20.0 us +-0%, 2.50 x torch bfloat16 (50.0 us), read 10.0 us"
    )


class Scripted:
    """Microseconds by the name that a call returns."""

    def __init__(self, times):
        self.times = times

    def stopwatch(self, calls):
        return Watch(self.times[calls[0]()])


class Watch:
    def __init__(self, us):
        self.us = us

    def warm_up(self):
        return self.us * 1e-6

    sample = warm_up


def test_a_duel_times_what_is_right_beside_another():
    def way(name, error):
        return Way(name, lambda: [lambda: name], None if error is None else lambda: error)

    ways = [way("ours", 0.01), way("wrong", 0.5), way("nan", float("nan")), way("failing", 0.0)]
    ways += [way("other", 0.0), way("read", None)]
    clock = Scripted({"ours": 2.0, "other": 6.0, "read": 1.0})
    found = duel("work", "problem", ways, clock, 1e-5, beside="other", tolerance=0.02)
    assert [(line.name, line.outcome) for line in found] == [
        ("ours", TIMED),
        ("wrong", WRONG),
        ("nan", WRONG),
        ("failing", FAILED),
    ]
    assert found[0].ratio.median == pytest.approx(3.0)
    assert found[0].floor.median == pytest.approx(1.0)
    assert "relative error 0.5" in found[1].reason
