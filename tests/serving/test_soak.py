"""The soak, in short, and the parts of it that need no server."""

import os

import pytest

from serving.soak import judge, percentiles, resident_mib, run

GOOD = {"wrong": 0, "requests": {"failed_otherwise": 0}, "growth_mib": 1.0}


def test_a_server_under_load_gives_the_tokens_of_offline_generation(tmp_path):
    pytest.importorskip("vllm", reason="vLLM is in an environment of its own: make serving")
    found = run(60, tmp_path)
    assert judge(found) == []
    assert found["requests"]["lost_when_the_server_was_killed"] > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"wrong": 2}, ["2 requests had tokens"]),
        ({"requests": {"failed_otherwise": 3}}, ["3 requests failed"]),
        ({"growth_mib": 1000.0}, ["grew by 1000.0 MiB"]),
    ],
)
def test_what_is_wrong_with_a_run_is_said(change, said):
    found = judge(GOOD | change)
    assert len(found) == len(said)
    assert all(part in whole for part, whole in zip(said, found, strict=True))


def test_percentiles_are_of_the_requests():
    assert percentiles([i / 1000 for i in range(101)]) == {"p50_ms": 50.0, "p99_ms": 99.0}


def test_memory_is_that_of_the_processes_of_a_session():
    assert resident_mib(os.getsid(0)) > 1
    assert resident_mib(2**30) == 0
