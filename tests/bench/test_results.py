"""The record: JSON and back, the newest of each machine, and the tables made from it."""

import json

import pytest

from bench import tables
from bench.results import BASELINE, Case, Conversion, Entry, Run, load, newest_per_machine, stored
from bench.timing import Spread


def even(value):
    return Spread(value, value, value, 3)


def entry(rival, role, us, *, ratio=None, size=1000, outcome="timed", **facts):
    return Entry(
        rival=rival,
        role=role,
        outcome=outcome,
        time=even(us) if us else None,
        ratio=even(ratio) if ratio else None,
        weight_bytes=size,
        **facts,
    )


def case(n, k, m, *more):
    return Case(
        n=n,
        k=k,
        m=m,
        layers=[],
        entries=[
            entry(BASELINE, "rival", 400.0, ratio=1.0, error=1e-3),
            entry("read of memory (sum)", "ceiling", 200.0, ratio=2.0),
            entry("read of memory (dot)", "ceiling", 100.0, ratio=4.0),
            entry("NVFP4", "ours", 100.0, ratio=4.0, size=500, kernel="cpu: stream"),
            entry("KBIT5", "ours", 800.0, ratio=0.5),
            *more,
        ],
    )


@pytest.fixture
def run():
    wrong = entry("torch int4", "rival", None, outcome="wrong", reason="3 of 9 values are off")
    return Run(
        device="cpu",
        date="2030-01-02T03:04:05+00:00",
        commit="0123456789abcdef",
        dirty=False,
        machine={
            "cpu": "Example 9000",
            "architecture": "x86_64",
            "cores": 8,
            "threads": 2,
            "instruction_sets": ["avx2", "fma"],
        },
        versions={"python": "3.12.0", "torch": "2.11.0"},
        settings={"native": "avx2"},
        missing={"bitsandbytes nf4": "ModuleNotFoundError: No module named 'bitsandbytes'"},
        skipped={"28672x8192": "needs about 7.5 GB of memory, 3.0 GB are free"},
        cases=[case(4096, 4096, 1, wrong), case(4096, 4096, 4), case(64, 128, 1)],
        conversions=[
            Conversion(
                name="quantize NVFP4 mse", n=64, k=128, outcome="timed", kernel="cpu",
                time=even(1500.0), reference=even(30000.0), ratio=even(20.0),
            ),
            Conversion(name="dequantize NVFP4", n=64, k=128, outcome="wrong", reason="other bytes"),
        ],
    )  # fmt: skip


def test_json_round_trip(run, tmp_path):
    path = tmp_path / "folder" / "run.json"
    run.store(path)
    assert load(path) == run
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]  # no draft is left


def test_another_schema_is_refused_by_name(run, tmp_path):
    path = tmp_path / "old.json"
    run.schema = 0
    run.store(path)
    with pytest.raises(ValueError, match=r"old\.json has schema 0"):
        load(path)


def test_the_newest_run_of_each_machine_counts(run, tmp_path):
    run.store(tmp_path / "b.json")
    data = json.loads((tmp_path / "b.json").read_text())
    older = {**data, "date": "2029-01-01T00:00:00+00:00"}
    other = {**older, "machine": {**data["machine"], "threads": 8}}
    (tmp_path / "a.json").write_text(json.dumps(older))
    (tmp_path / "c.json").write_text(json.dumps(other))
    found = newest_per_machine(stored(tmp_path))
    assert [(r.date[:4], r.machine["threads"]) for r in found] == [("2030", 2), ("2029", 8)]


def test_the_ceiling_is_the_fastest_read(run):
    first = run.cases[0]
    assert first.ceiling.rival == "read of memory (dot)"
    assert first.percent_of_ceiling(first.entry("NVFP4")) == pytest.approx(50)


def test_the_readme_table(run):
    text = tables.speed_tables([run])
    assert "| **NVFP4** | - | - | - | - | 4.00 | 4.00 | - | - |" in text
    assert "| torch int4 | - | - | - | - | wrong | - | - | - |" in text
    assert "Example 9000, 2 threads, avx2 (commit 0123456789ab, 2030-01-02):" in text
    assert "KBIT5" not in text  # of five rows, it is none
    assert "28672" not in text


def test_the_full_tables(run):
    text = tables.performance_tables([run])
    assert "Example 9000 (x86_64), 2 threads on 8 cores; instruction sets avx2, fma;" in text
    assert "- bitsandbytes nf4: ModuleNotFoundError" in text
    assert "#### 4096 x 4096 (Llama 3 8B q and o)" in text
    assert "| times torch bfloat16 | M=1 | M=4 | % of read at M=1 |" in text
    assert "| **NVFP4** | 4.00 | 4.00 | 50 |" in text
    assert "| torch bfloat16, us | 400 | 400 |  |" in text
    assert "#### 64 x 128\n" in text
    assert "| quantize NVFP4 mse | cpu | 1.5 | 30.0 | 20.00 |" in text
    assert "wrong: other bytes" in text
    assert "Slower than torch bfloat16: 3 of 6 products." in text
    assert "- KBIT5: 4096 x 4096 at M=1 (0.50), 4096 x 4096 at M=4 (0.50)" in text
    assert "- torch int4 on 4096 x 4096 at M=1: wrong, 3 of 9 values are off" in text
    assert "- 28672x8192: needs about 7.5 GB" in text


def test_every_table_is_rectangular(run):
    widths = []
    for block in tables.performance_tables([run]).split("\n\n"):
        lines = block.splitlines()
        if all(line.startswith("|") for line in lines):
            widths.append({line.count("|") for line in lines})
    assert len(widths) == 3
    assert all(len(width) == 1 for width in widths)


def test_without_a_run_the_tables_say_so():
    assert tables.speed_tables([]) == tables.NOTHING_STORED
    assert tables.performance_tables([]) == tables.NOTHING_STORED


def test_a_run_without_the_readmes_shapes_says_so(run):
    run.cases = run.cases[2:]
    assert tables.speed_tables([run]) == tables.NOTHING_STORED
