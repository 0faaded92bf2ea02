"""`blockscale quantize --importance`: measured, given, kept, and the same after a crash."""

import os

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale import models
from blockscale.checkpoint import (
    ImportanceSource,
    Settings,
    convert,
    load,
    plan_conversion,
    run_plan,
)
from blockscale.checkpoint.importance import importance_of
from blockscale.checkpoint.journal import JOURNAL
from blockscale.cli import importance as option
from blockscale.models import importance as measuring
from checkpoint.models import bytes_of, llama, write_model
from cli.quantizing import failing, quantised, run
from models.tiny import write_tiny

MSE = ("--format", "kbit4", "--scale", "mse")
DOWN = "model.layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A language model in a folder, as transformers saves it."""
    pytest.importorskip("transformers")
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny", tokenizer=False)


@pytest.fixture
def checkpoint(tmp_path):
    """Tensors that nobody can run: config.json names no architecture."""
    return write_model(tmp_path / "source", llama(1))


def spread(k):
    return torch.randn(k).mul(2).exp()


# --- auto ---


def test_language_models_are_measured_by_default(model, tmp_path):
    kept = ("--save-importance", tmp_path / "kept.safetensors")
    result = run(model, tmp_path / "out", *MSE, "--device", "cpu", *kept)
    assert "measuring the inputs of all layers on random token ids, on cpu" in result.output
    assert "errors are weighed in 14 of 14 tensors" in result.output
    kept = load_file(tmp_path / "kept.safetensors")
    expected = bs.nn.measure_importance(models.load_model(model))
    assert kept.keys() == expected.keys()
    torch.testing.assert_close(kept, expected)
    plain = load(model)
    for name, q in quantised(tmp_path / "out").items():
        weights = kept[name.removesuffix(".weight")]
        assert q == bs.quantize(plain[name], bs.KBIT4, scale="mse", importance=weights)
    assert not [name for name in bytes_of(tmp_path / "out") if "importance" in name]

    run(model, tmp_path / "again", *MSE, "--importance", tmp_path / "kept.safetensors")
    assert quantised(tmp_path / "again") == quantised(tmp_path / "out")
    run(model, tmp_path / "none", *MSE, "--importance", "none")
    assert quantised(tmp_path / "none") != quantised(tmp_path / "out")


def test_fused_projections_share_scale_and_importance(model, tmp_path):
    run(model, tmp_path / "out", "--format", "nvfp4", "--scale", "mse", "--device", "cpu")
    importance = bs.nn.measure_importance(models.load_model(model))
    plain = load(model)
    for name, q in quantised(tmp_path / "out").items():
        wanted = bs.quantize(
            plain[name],
            bs.NVFP4,
            scale="mse",
            tensor_scale=q.tensor_scale,
            importance=importance[name.removesuffix(".weight")],
        )
        assert q == wanted


def test_nothing_is_run_where_nothing_is_searched(model, tmp_path, monkeypatch):
    monkeypatch.setattr(option, "measure_checkpoint", lambda *args: pytest.fail("it was run"))
    plain = ("--format", "kbit4", "--scale", "absmax")
    assert "weighed" not in run(model, tmp_path / "a", *plain).output
    assert "weighed" not in run(model, tmp_path / "b", *MSE, "--importance", "none").output


def test_why_a_model_is_not_run_is_said(model, checkpoint, tmp_path, monkeypatch):
    out = run(checkpoint, tmp_path / "a", *MSE).output
    assert "weigh the same: config.json names no causal language model" in out
    assert quantised(tmp_path / "a") == {
        name: bs.quantize(load(checkpoint)[name], bs.KBIT4, scale="mse")
        for name in quantised(tmp_path / "a")
    }
    out = run(tmp_path / "a", tmp_path / "b", *MSE).output
    assert "weigh the same: the model is quantised already" in out
    alone = checkpoint / "model-00001-of-00001.safetensors"
    assert "a file on its own" in run(alone, tmp_path / "c", *MSE).output
    monkeypatch.setattr(measuring, "available_memory", lambda device: 1000)
    assert "GB of memory and 0.0 are free on cpu" in run(model, tmp_path / "d", *MSE).output
    monkeypatch.setattr(measuring, "find_spec", lambda name: None)
    assert "transformers is not installed" in run(model, tmp_path / "e", *MSE).output


@pytest.mark.parametrize(
    ("asked", "free", "where"),
    [
        ("auto", {"cuda": 10**9, "cpu": 10**9}, "cuda:1"),
        ("auto", {"cuda": 1000, "cpu": 10**9}, "cpu"),
        ("auto", {"cuda": 10**9, "cpu": 1000}, None),  # where a model is loaded
        ("auto", {"cpu": 10**9}, "cpu"),
        ("cpu", {"cuda": 10**9, "cpu": 10**9}, "cpu"),
        ("cuda:0", {"cuda": 10**9, "cpu": 10**9}, "cuda:0"),
        ("cuda", {"cuda": 1000, "cpu": 10**9}, None),  # what is asked for and does not fit
    ],
)
def test_the_gpu_measures_where_the_model_fits(model, tmp_path, monkeypatch, asked, free, where):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in free)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(measuring, "available_memory", lambda device: free[device.type])
    measured = []
    monkeypatch.setattr(
        option, "measure_checkpoint", lambda folder, tensors, device: measured.append(device) or {}
    )
    out = run(model, tmp_path / "out", *MSE, "--device", asked).output
    assert measured == ([torch.device(where)] if where else [])
    assert (f"random token ids, on {where}" if where else "0.0 are free on") in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there(model, tmp_path, monkeypatch, capsys):
    err = failing(monkeypatch, capsys, model, tmp_path / "out", *MSE, "--device", "cuda")
    assert "sees no CUDA device" in err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_measures_what_the_cpu_does(model, tmp_path):
    for device in ("cpu", "cuda"):
        options = ("--device", device, "--save-importance", tmp_path / device)
        assert f", on {device}" in run(model, tmp_path / f"to_{device}", *MSE, *options).output
    cpu, gpu = (load_file(tmp_path / device) for device in ("cpu", "cuda"))
    torch.testing.assert_close(gpu, cpu, rtol=1e-2, atol=0)


def test_a_model_that_does_not_run_is_quantised_without(tmp_path):
    pytest.importorskip("transformers")
    source = write_model(tmp_path / "source", llama(1), architectures=["NobodysForCausalLM"])
    (source / "config.json").write_text('{"architectures": ["NobodysForCausalLM"]}')
    out = run(source, tmp_path / "out", *MSE).output
    assert "errors of all columns weigh the same: " in out
    assert len(quantised(tmp_path / "out")) == 7


# --- a file ---


def test_a_file_gives_importance_by_layer(checkpoint, tmp_path):
    weights = spread(96)
    save_file({DOWN: weights}, tmp_path / "given.safetensors")
    run(checkpoint, tmp_path / "out", *MSE, "--importance", tmp_path / "given.safetensors")
    plain = load(checkpoint)
    for name, q in quantised(tmp_path / "out").items():
        each = weights if name == f"{DOWN}.weight" else None
        assert q == bs.quantize(plain[name], bs.KBIT4, scale="mse", importance=each)


def test_experts_take_their_own_part():
    importance = {"a.experts.gate_up_proj": spread(64), "a.experts.down_proj": torch.rand(3, 32)}
    assert importance_of("a.experts.2.up_proj.weight", importance) is not None
    assert torch.equal(
        importance_of("a.experts.2.down_proj.weight", importance),
        importance["a.experts.down_proj"][2],
    )
    assert importance_of("a.experts.3.down_proj.weight", importance) is None
    assert importance_of("a.experts.down_proj", importance).shape == (3, 32)
    assert importance_of("b.experts.0.up_proj.weight", importance) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model.layers.7.mlp.down_proj": torch.ones(96)}, "'model.layers.7.mlp.down_proj', and"),
        ({DOWN: torch.ones(95)}, "must be [96], got [95]"),
        ({DOWN: torch.full((96,), -1.0)}, f"importance of {DOWN} has negative numbers"),
        ({DOWN: torch.full((96,), float("nan"))}, f"importance of {DOWN} has NaN or Inf"),
        ({DOWN: torch.full((96,), float("inf"))}, f"importance of {DOWN} has NaN or Inf"),
        ({DOWN: torch.ones(96, dtype=torch.int32)}, "must be numbers [k]"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    checkpoint, tmp_path, monkeypatch, capsys, given, message
):
    save_file(given, tmp_path / "given.safetensors")
    options = (*MSE, "--importance", tmp_path / "given.safetensors")
    err = failing(monkeypatch, capsys, checkpoint, tmp_path / "out", *options)
    assert message in err
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*MSE, "--importance", "missing"), "no such file; auto and none are no files"),
        ((*MSE[:-1], "absmax", "--importance", "x"), "it needs --scale mse, not absmax"),
        ((*MSE, "--importance", "none", "--save-importance", "x"), "there is none to save"),
        ((*MSE, "--save-importance", "x"), "names no causal language model"),
        ((*MSE, "--save-importance", "no/where"), "no is no folder"),
    ],
)
def test_options_that_cannot_be_meant(checkpoint, tmp_path, monkeypatch, capsys, options, message):
    assert message in failing(monkeypatch, capsys, checkpoint, tmp_path / "out", *options)


# --- interrupted runs ---


class Crash(BaseException):
    """Not an Exception, so that nothing but the end of the process would stop at it."""


def test_a_crash_at_any_sync_resumes_with_the_first_importance(checkpoint, tmp_path, monkeypatch):
    """Measured anew it would be another: what the first run measured is kept beside its journal."""
    fsync, left = os.fsync, 10**9
    settings = Settings(bs.KBIT4, scale="mse", shard_size=10_000)

    def crash(handle):
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        fsync(handle)

    weights = spread(96)
    first = ImportanceSource("measured", lambda: {DOWN: weights})
    other = ImportanceSource("measured", lambda: {DOWN: weights.flip(0)})
    run_plan(plan_conversion(checkpoint, settings), tmp_path / "whole", importance=first)
    wanted = bytes_of(tmp_path / "whole")
    monkeypatch.setattr(os, "fsync", crash)
    resumed = 0
    for stop in range(1000):
        target, left = tmp_path / str(stop), stop
        try:
            run_plan(plan_conversion(checkpoint, settings), target, importance=first)
        except Crash:
            kept = (tmp_path / f"{stop}.partial" / "blockscale-importance").exists()
        else:
            break
        left = 10**9
        if not target.exists() or (target / JOURNAL).exists():
            resumed += kept
            again = other if kept else first
            run_plan(plan_conversion(checkpoint, settings), target, importance=again)
        assert bytes_of(target) == wanted
    assert resumed > 5


def test_another_importance_does_not_go_on(checkpoint, tmp_path, monkeypatch):
    settings = Settings(bs.KBIT4, scale="mse")

    def fails(*args):
        raise Crash

    monkeypatch.setattr(convert, "write_shard", fails)
    one = ImportanceSource("one", lambda: {DOWN: spread(96)})
    with pytest.raises(Crash):
        run_plan(plan_conversion(checkpoint, settings), tmp_path / "out", importance=one)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="importance: was 'one' and is None"):
        run_plan(plan_conversion(checkpoint, settings), tmp_path / "out")
