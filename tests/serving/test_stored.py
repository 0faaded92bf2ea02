"""Stored runs against a real vLLM: of versions that the plug-in calls tested, and all is well."""

import json

import pytest

from blockscale.integrations.vllm.registration import version_warning
from serving.record import ROOT
from serving.soak import judge

STORED = sorted((ROOT / "bench" / "results" / "serving").glob("*.json"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_run_says_when_and_with_what(path):
    run = json.loads(path.read_text())
    assert version_warning(run["versions"]["vllm"]) is None
    assert run["date"] >= "2026-11-16"
    assert run["machine"]
    assert set(run["versions"]) == {"blockscale", "vllm", "torch", "transformers", "python"}


def test_the_tests_that_a_run_recorded_have_passed():
    run = json.loads((ROOT / "bench/results/serving/tests.json").read_text())
    assert set(run["tests"].values()) == {"passed"}


def test_the_stored_soak_found_nothing_wrong():
    assert judge(json.loads((ROOT / "bench/results/serving/soak.json").read_text())) == []
