"""What ncu prints, and what becomes of it. Nothing is counted here."""

from bench.counters import METRICS, cases, parse
from bench.counters_tables import counters_table

HEADER = ["ID", "Kernel Name", *(metric for metric, _ in METRICS.values())]
UNITS = ["", "", "ns", "byte", "%", "%", "%", "register/thread"]


def printed(*rows):
    lines = ["==PROF== Connected", *(",".join(f'"{cell}"' for cell in row) for row in rows)]
    return "\n".join(lines)


def test_a_launch_is_read():
    row = ["0", "stream", "41,500", "132,120,576", "3.5", "61.25", "12", "95"]
    (found,) = parse(printed(HEADER, UNITS, row))
    assert found == {
        "us": 41.5,
        "read_MB": 132.120576,
        "L2_hit_percent": 3.5,
        "issue_percent": 61.25,
        "tensor_percent": 12.0,
        "registers": 95.0,
    }


def test_a_report_becomes_a_table():
    (counts,) = parse(printed(HEADER, UNITS, ["0", "stream", "50000", "1e8", "1", "2", "3", "4"]))
    line = {"format": "nvfp4", "m": 1, "n": 28672, "k": 8192, **counts}
    facts = {"commit": "a" * 40, "dirty": False, "date": "2026-11-15T00:00:00"}
    table = counters_table({**facts, "machine": {"gpu": "H200"}, "products": [line]})
    assert "| 28672 x 8192 | NVFP4 | 1 | 100.0 | 2,000 | 1 | 2 | 3 | 4 |" in table


def test_cases_are_all_different():
    assert len(set(cases())) == len(list(cases()))
