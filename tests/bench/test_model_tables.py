"""Whole models beside llama.cpp, as the documentation shows them."""

from bench.model_tables import race_table, speed_table

RECORD = {
    "date": "2026-11-18T09:00:00",
    "commit": "0123456789abcdef",
    "dirty": False,
    "machine": {"cpu": "Some CPU", "cores": 4, "instruction_sets": ["avx512_vnni", "amx_int8"]},
    "versions": {"torch": "2.13.0"},
    "shape": {"layers": 8, "hidden": 2048, "vocabulary": 128256},
    "runs": [
        {
            "threads": 4,
            "rates": {
                "bfloat16": {"decode": [10.0, 10.0, 10.0], "prefill 64": [50.0, 50.0, 50.0]},
                "kbit4, optimize_, int8": {
                    "decode": [60.0, 30.0, 50.0],
                    "prefill 64": [1500.0, 1000.0, 900.0],
                },
                "llama.cpp Q4_0": {
                    "decode": [40.0, 40.0, 20.0],
                    "prefill 64": [1000.0, 1000.0, 1000.0],
                },
            },
        }
    ],
}


def test_ratios_are_medians_of_rounds():
    """1.5, .75 and 2.5: not the medians' ratio, 1.25."""
    assert speed_table([RECORD]).splitlines() == [
        "| times llama.cpp Q4_0 | decode | prefill of 64 |",
        "|---|---|---|",
        "| Some CPU with AMX, 4 threads | 1.50 | 1.00 |",
    ]


def test_every_model_is_shown_with_its_rate():
    title, _, *table = race_table(RECORD).splitlines()
    assert title.startswith("Some CPU with AMX, 4 cores; 8 layers of 2048")
    assert table[2:] == [
        "| 4 | bfloat16 | 10.0 (0.25) | 50.0 (0.05) |",
        "| 4 | kbit4, optimize_, int8 | 50.0 (1.50) | 1,000 (1.00) |",
        "| 4 | llama.cpp Q4_0 | 40.0 | 1,000 |",
    ]


def test_a_run_without_llama_is_left_out():
    alone = {"threads": 2, "rates": {"kbit4, optimize_, int8": {"decode": [1.0]}}}
    assert speed_table([{**RECORD, "runs": [alone]}]) == ""
    assert "| 2 | kbit4, optimize_, int8 | 1.0 |" in race_table({**RECORD, "runs": [alone]})
