"""What tuning keeps, whom it serves, and when it is no longer believed."""

import pytest
import torch

import blockscale as bs
from blockscale import ops
from blockscale.kernels import KERNELS
from blockscale.ops.tuning import sources, stored
from blockscale.ops.tuning import tune as tuning
from blockscale.runtime import identity, tuned
from ops.tuning.fakes import Config, Fake, chosen, forget, tune

pytestmark = pytest.mark.usefixtures("folder")


def test_the_same_file_gives_the_same_choice(clock, install):
    install(Fake(clock, 4, 8))
    tune(clock)
    first = chosen()
    forget()
    assert chosen() == first


def test_nothing_is_kept_where_nobody_asked_for_it(clock, install, folder):
    install(Fake(clock, 4, 8))
    assert tune(clock, store=False).path is None
    assert not folder.exists()
    assert chosen().config == Config(4)


def test_it_is_told_before_anything_is_measured_that_nothing_can_be_kept(
    clock, install, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "file"))
    fake = Fake(clock, 4, 8)
    install(fake)
    with pytest.raises(RuntimeError, match="cannot keep its results"):
        tune(clock)
    assert not fake.launched


def test_an_environment_variable_turns_it_off(clock, install, monkeypatch):
    install(Fake(clock, 4, 8))
    tune(clock)
    monkeypatch.setenv("BLOCKSCALE_TUNED", "0")
    forget()
    assert chosen().config == Config(4)
    assert chosen().reason == "by rule: BLOCKSCALE_TUNED=0 turns stored results off"


def test_changed_sources_are_not_what_was_measured(clock, install, monkeypatch):
    install(Fake(clock, 4, 8))
    tune(clock)
    monkeypatch.setattr(stored, "source_hash", lambda target: "changed")
    ops.choose.cache_clear()
    assert chosen() == (KERNELS["matmul"][0], Config(4), "by rule")


def test_another_machine_is_not_where_it_was_measured(clock, install, monkeypatch):
    install(Fake(clock, 4, 8))
    tune(clock)
    monkeypatch.setattr(identity, "describe_device", lambda device: "another CPU")
    ops.choose.cache_clear()
    assert chosen().reason == "by rule"


def test_a_config_that_is_no_longer_legal_is_told(clock, install):
    fake = Fake(clock, 4, 8)
    install(fake)
    tune(clock)
    fake.listed = [Config(4), Config(9)]
    ops.choose.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"not used: fake offers no config \{'speed': 8\}"):
        assert chosen().config == Config(4)
    assert "by rule; tuned on " in chosen().reason
    assert "offers no config" in chosen().reason


def test_a_kernel_that_refuses_now_is_told(clock, install):
    first, second = Fake(clock, 4), Fake(clock, 8, name="second")
    install(first, second)
    tune(clock)
    second.refusal = "it is off"
    ops.choose.cache_clear()
    with pytest.warns(RuntimeWarning, match="not used: second refuses: it is off"):
        assert chosen().kernel is first
    install(first)
    with pytest.warns(RuntimeWarning, match="there is no kernel second"):
        assert chosen().kernel is first


def test_a_result_serves_its_own_problem_alone(clock, install):
    install(Fake(clock, 4, 8))
    tune(clock)
    for other in ({"m": 3}, {"n": 64}, {"out": "float32"}, {"deterministic": True}):
        assert chosen(**other).config == Config(4), other
    assert chosen(bias=True).config == Config(8)


def test_unlike_gpus_of_one_target_are_told_apart_by_nobody(clock, install, monkeypatch):
    names = ["NVIDIA H100", "NVIDIA H200"]
    monkeypatch.setattr(stored, "device_names", lambda target: names)
    assert stored.machine_of("sm_90") is None
    monkeypatch.setattr(tuning, "device_names", lambda target: names)
    with pytest.raises(RuntimeError, match="H100 and NVIDIA H200 are all cpu"):
        tune(clock)


def test_plans_are_made_anew(clock, install):
    fake = Fake(clock, 4, 8)
    install(fake)
    w, x = bs.quantize(torch.randn(48, 64), bs.NVFP4), torch.randn(2, 64).bfloat16()
    bs.matmul(x, w)
    tune(clock)
    fake.launched.clear()
    bs.matmul(x, w)
    assert fake.launched == [8]


def test_the_hash_is_of_every_source(tmp_path, monkeypatch):
    sources.source_hash.cache_clear()
    first = {target: sources.source_hash(target) for target in ("cpu", "sm_90")}
    assert len(set(first.values())) == 2
    for name in ("a.cu", "b.cuh"):
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    sources.source_hash.cache_clear()
    second = sources.source_hash("sm_90")
    (tmp_path / "b.cuh").write_text("2")
    sources.source_hash.cache_clear()
    assert len({first["sm_90"], second, sources.source_hash("sm_90")}) == 3
    assert sources.source_hash("cpu") == first["cpu"]
    sources.source_hash.cache_clear()


def test_what_is_kept_says_with_what_it_was_measured(clock, install):
    install(Fake(clock, 4, 8))
    tune(clock)
    (kept,) = tuned.results().values()
    assert kept.versions["torch"] == torch.__version__
    assert kept.problem == {
        "verb": "matmul", "m": 2, "n": 48, "k": 64,
        "x": "bfloat16", "w": "e2m1/16:ue4m3:amax@bits/rows", "out": "bfloat16",
    }  # fmt: skip
    assert (kept.rule.microseconds, kept.best.microseconds) == (25.0, 12.5)


def test_every_header_of_the_device_code_counts(monkeypatch, tmp_path):
    """Also those in folders below."""
    folder = tmp_path / "cuda" / "gemm"
    folder.mkdir(parents=True)
    header = folder / "ring.cuh"
    header.write_text("one")
    monkeypatch.setattr(sources, "FOLDER", tmp_path / "cuda")
    before = sources.source_hash.__wrapped__("sm_90")
    header.write_text("another")
    assert sources.source_hash.__wrapped__("sm_90") != before
