"""The study of quality: rows as asked for, a record of them, and the table in the documentation."""

import json

import pytest

from bench import quality, quality_tables
from models.tiny import write_tiny


def test_rows_are_judged_and_recorded(tmp_path, capsys):
    pytest.importorskip("transformers")
    folder, out = write_tiny(tmp_path / "tiny"), tmp_path / "new" / "run.json"
    options = ["--model", folder, "--tokens", 1024, "--device", "cpu", "--out", out]
    assert quality.main([*map(str, options), "--only", "kbit3:*", "nvfp4:none"]) == 0
    run = json.loads(out.read_text())
    named = [(row["name"], row["importance"]) for row in run["rows"]]
    expected = {("nvfp4", "none"), *(("kbit3", each) for each in ("none", "random", "text"))}
    assert set(named) == expected
    assert all(row["tokens"] == 1024 and row["ratio"] > 0 for row in run["rows"])
    assert len({row["perplexity"] for row in run["rows"]}) == 4
    assert {"device", "date", "commit", "versions"} <= run.keys()
    assert "kbit3" in capsys.readouterr().out


def test_unknown_rows_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="the rows are mxfp8:none"):
        quality.main(["--model", str(tmp_path), "--only", "kbit9"])


def test_the_table_has_every_stored_row():
    lines = quality_tables.importance().splitlines()
    runs = [json.loads(path.read_text()) for path in quality_tables.FOLDER.glob("importance_*")]
    known = ("name", "importance", "tokens")
    rows = {
        (run["device"], *(row[fact] for fact in known), round(row["ratio"], 3))
        for run in runs
        for row in run["rows"]
    }
    assert len(lines) == 2 + len(rows)
    assert len({line.count("|") for line in lines}) == 1
    mixed = "KBIT4, `k_proj` KBIT5, `v_proj` KBIT5 | nothing | 4.31 | 1.143 ± 0.004"
    assert any(mixed in line for line in lines)
