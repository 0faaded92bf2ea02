"""What environment variables may say."""

import pytest

from blockscale.runtime import environment

SWITCHES = {
    "BLOCKSCALE_CUDA": environment.cuda_enabled,
    "BLOCKSCALE_PROVE": environment.proving_enabled,
    "BLOCKSCALE_TUNED": environment.tuned_enabled,
}


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(("told", "on"), [("", True), ("1", True), ("0", False)])
def test_switches_are_on_unless_they_are_turned_off(monkeypatch, name, told, on):
    monkeypatch.setenv(name, told)
    assert SWITCHES[name]() is on


@pytest.mark.parametrize(("told", "on"), [("", False), ("1", True), ("0", False)])
def test_checks_are_off_unless_they_are_asked_for(monkeypatch, told, on):
    monkeypatch.setenv(environment.CHECKS, told)
    assert environment.checks_enabled() is on


@pytest.mark.parametrize(("told", "everywhere"), [("", None), ("1", True), ("0", False)])
def test_serving_depends_on_the_device_where_nothing_is_said(monkeypatch, told, everywhere):
    monkeypatch.setenv("BLOCKSCALE_VLLM", told)
    assert environment.serving_everywhere() is everywhere


ALL = {
    **SWITCHES,
    environment.CHECKS: environment.checks_enabled,
    "BLOCKSCALE_VLLM": environment.serving_everywhere,
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("told", ["false", "no", "2"])
def test_other_words_are_refused(monkeypatch, name, told):
    monkeypatch.setenv(name, told)
    with pytest.raises(ValueError, match=f"{name}={told}: give 1 or 0"):
        ALL[name]()
