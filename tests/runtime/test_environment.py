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


@pytest.mark.parametrize(("told", "everywhere"), [("", None), ("1", True), ("0", False)])
def test_serving_depends_on_the_device_where_nothing_is_said(monkeypatch, told, everywhere):
    monkeypatch.setenv("BLOCKSCALE_VLLM", told)
    assert environment.serving_everywhere() is everywhere


@pytest.mark.parametrize("name", [*SWITCHES, "BLOCKSCALE_VLLM"])
@pytest.mark.parametrize("told", ["false", "no", "2"])
def test_other_words_are_refused(monkeypatch, name, told):
    monkeypatch.setenv(name, told)
    asked = SWITCHES.get(name, environment.serving_everywhere)
    with pytest.raises(ValueError, match=f"{name}={told}: give 1 or 0"):
        asked()
