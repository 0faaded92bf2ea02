"""`blockscale quantize`: what it refuses, and what is left when it fails."""

import errno
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.checkpoint import convert, shards
from checkpoint.models import bytes_of, llama, write_model
from cli.quantizing import failing, quantised, run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "nvpf4"], "did you mean 'nvfp4'"),
        (["--format", "kbit4", "--scale", "floor"], "scale='floor' does not apply to kbit4"),
        (["--format", "kbit4", "--dialect", "modelopt"], "hold nvfp4 and mxfp8, not kbit4"),
        (
            ["--format", "nvfp4", "--dialect", "gguf"],
            "--dialect gguf: use one of compressed-tensors",
        ),
        (["--format", "nvfp4", "--layers", "down_proj"], "expected PATTERN=FORMAT"),
        (["--format", "nvfp4", "--layers", "*.nothing=mxfp4"], "no tensor has such a name"),
        (["--format", "nvfp4", "--layers", "*=keep"], "none of its 18 tensors would be quantised"),
        (
            ["--format", "nvfp4", "--layers", "*.mlp.*=keep", "--layers", "*.down_proj=mxfp4"],
            "--layers *.down_proj: patterns before it match all of its tensors",
        ),
        (["--format", "nvfp4", "--shard-size", "big"], "expected a size such as 5GB"),
    ],
)
def test_bad_options(source, tmp_path, monkeypatch, capsys, options, message):
    assert message in failing(monkeypatch, capsys, source, tmp_path / "out", *options)
    assert list(tmp_path.iterdir()) == [source]


def test_missing_source(tmp_path, monkeypatch, capsys):
    err = failing(monkeypatch, capsys, tmp_path / "no", tmp_path / "out", "--format", "nvfp4")
    assert "no such file or folder" in err


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_weights_are_refused_by_name(tmp_path, monkeypatch, capsys, bad):
    tensors, threads = llama(1), torch.get_num_threads()
    name = "model.layers.0.self_attn.k_proj.weight"
    tensors[name][3, 5] = bad
    source = write_model(tmp_path / "source", tensors)
    err = failing(monkeypatch, capsys, source, tmp_path / "out", "--format", "nvfp4")
    assert f"{name} holds NaN or Inf" in err
    assert not (tmp_path / "out").exists()
    assert torch.get_num_threads() == threads
    assert f"keep it as it is with --layers '{name}=keep'" in err
    keep = ("--layers", f"{name}=keep")
    assert run(source, tmp_path / "out", "--format", "nvfp4", *keep).exit_code == 0
    assert name not in quantised(tmp_path / "out")


def test_a_quantised_tensor_with_nan_is_kept_if_asked(tmp_path, monkeypatch, capsys):
    bs.save({"a.weight": bs.quantize(torch.randn(8, 64), "mxfp8")}, tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    tensors["a.weight_scale"][0, 0] = 255  # NaN in e8m0
    tensors["b.weight"] = torch.randn(8, 64)
    save_file(tensors, tmp_path / "a" / "model.safetensors")
    options = (tmp_path / "a", tmp_path / "b", "--format", "mxfp8")
    err = failing(monkeypatch, capsys, *options)
    assert "a.weight holds NaN or Inf" in err
    assert run(*options, "--layers", "a.weight=keep").exit_code == 0
    kept = load_file(tmp_path / "b" / "model.safetensors")
    assert torch.equal(kept["a.weight_scale"], tensors["a.weight_scale"])


def test_an_interrupted_run_says_how_it_goes_on(source, tmp_path, monkeypatch):
    plain_write = shards.write_shard

    def interrupted(*args):
        if not left:
            raise KeyboardInterrupt
        return left.pop()(*args)

    options = (source, tmp_path / "out", "--format", "nvfp4", "--shard-size", "10KB")
    monkeypatch.setattr(convert, "write_shard", interrupted)
    for files, kept in ((0, "no file was finished"), (2, f"{tmp_path / 'out'}.partial")):
        left = [plain_write] * files
        stopped = run(*options)
        assert stopped.exit_code == 130
        assert f"{kept}; the same command goes on from there" in stopped.output
    monkeypatch.undo()
    assert run(*options).exit_code == 0
    assert (tmp_path / "out").exists()


def test_an_existing_target_is_left_alone(source, tmp_path, monkeypatch, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    err = failing(monkeypatch, capsys, source, tmp_path / "out", "--format", "nvfp4")
    assert "exists already" in err
    assert bytes_of(tmp_path / "out") == {"precious": b"x"}


def test_scales_that_differ_are_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    w = torch.randn(8, 64)
    tensors = {f"a.{p}_proj.weight": bs.quantize(w * (i + 1), "nvfp4") for i, p in enumerate("qk")}
    bs.save(tensors, tmp_path / "a", dialect="blockscale")
    err = failing(monkeypatch, capsys, tmp_path / "a", tmp_path / "b", "--format", "nvfp4")
    assert "a.q_proj.weight has tensor_scale" in err
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_fused_experts_need_our_dialect(tmp_path, monkeypatch, capsys):
    experts = {"l.experts.down_proj": bs.quantize(torch.randn(2, 8, 64), "mxfp4")}
    bs.save(experts, tmp_path / "a")
    options = ("--format", "nvfp4", "--dialect", "compressed-tensors")
    err = failing(monkeypatch, capsys, tmp_path / "a", tmp_path / "b", *options)
    assert "the blockscale dialect holds every format and shape" in err


def test_too_little_space_is_said_first(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    err = failing(monkeypatch, capsys, source, tmp_path / "out", "--format", "nvfp4")
    assert "its disk has 0.00 GB free" in err


@pytest.mark.fault(
    "the disk fills up while quantising",
    outcome="OSError; finished files are kept for the next run",
)
def test_a_full_disk_loses_nothing(source, tmp_path, monkeypatch, capsys):
    """The third file cannot be written; with room again, the first two are kept."""
    plain_write, calls = shards.write_shard, []

    def full(*args):
        calls.append(args)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain_write(*args)

    monkeypatch.setattr(convert, "write_shard", full)
    options = ["--format", "nvfp4", "--shard-size", "10KB"]
    err = failing(monkeypatch, capsys, source, tmp_path / "out", *options)
    assert "finished files are kept in" in err
    kept = {p.name: p.stat().st_ino for p in (tmp_path / "out.partial").glob("*.safetensors")}
    assert len(kept) == 2
    monkeypatch.undo()
    run(source, tmp_path / "out", *options)
    assert {name: (tmp_path / "out" / name).stat().st_ino for name in kept} == kept
