"""`blockscale quantize`: what it writes, what it leaves alone, and how it fails and resumes."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import blockscale as bs
from blockscale import cli
from blockscale.checkpoint import Settings, convert, load, plan_conversion, run_plan, shards
from blockscale.cli.quantize import parse_size
from checkpoint.models import llama, write_model

PROJECTIONS = 14  # of `llama()`


def run(*args):
    return CliRunner().invoke(cli.commands, ["quantize", *map(str, args)], catch_exceptions=False)


def failing(monkeypatch, capsys, *args):
    monkeypatch.setattr(sys, "argv", ["blockscale", "quantize", *map(str, args)])
    with pytest.raises(SystemExit) as stop:
        cli.app()
    err = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in err
    assert stop.value.code == 2
    return err


@pytest.fixture
def source(tmp_path):
    return write_model(tmp_path / "source", llama(), shards=3)


def quantised(found):
    return {name: value for name, value in found.items() if isinstance(value, bs.QTensor)}


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# --- what it writes ---


def test_help():
    out = CliRunner().invoke(cli.commands, ["quantize", "--help"]).output
    for option in ("--format", "--layers", "--scale", "--dialect", "--shard-size"):
        assert option in out


def test_linear_layers_are_quantised_and_the_rest_is_as_it_was(source, tmp_path):
    result = run(source, tmp_path / "out", "--format", "nvfp4", "--shard-size", "20KB")
    assert result.exit_code == 0, result.output
    assert "14 to nvfp4, in compressed-tensors files" in result.output
    found, before = load(tmp_path / "out"), load(source)
    assert found.keys() == before.keys()
    assert len(quantised(found)) == PROJECTIONS
    for name, value in found.items():
        if isinstance(value, bs.QTensor):
            wanted = bs.quantize(before[name], bs.NVFP4, tensor_scale=value.tensor_scale)
            assert value == wanted
        else:
            assert torch.equal(value, before[name])
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"tokenizer.json", "generation_config.json", "model.safetensors.index.json"} <= names
    assert "pytorch_model.bin" not in names
    assert len([name for name in names if name.endswith(".safetensors")]) > 2
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["quantization_config"]["ignore"] == ["model.embed_tokens", "lm_head"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
def test_fused_projections_share_a_tensor_scale(source, tmp_path, dialect):
    run(source, tmp_path / "out", "--format", "nvfp4", "--dialect", dialect)
    found, before = quantised(load(tmp_path / "out")), load(source)
    for parts in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        names = [n for n in found if n.split(".")[-2] in parts and ".1." in n]
        assert len(names) == len(parts)
        together = bs.quantize(torch.cat([before[n] for n in names]), bs.NVFP4)
        assert {found[n].tensor_scale.item() for n in names} == {together.tensor_scale.item()}
    alone = "model.layers.0.self_attn.o_proj.weight"
    assert found[alone] == bs.quantize(before[alone], bs.NVFP4)


@pytest.mark.parametrize(
    ("format", "dialect"),
    [
        ("nvfp4", "compressed-tensors"),
        ("mxfp4", "compressed-tensors"),
        ("mxfp6_e2m3", "compressed-tensors"),
        ("mxfp8", "compressed-tensors"),
        ("kbit3", "blockscale"),
        ("mxfp6_e3m2", "blockscale"),
        ("e2m1/32:ue4m3:amax", "blockscale"),
    ],
)
def test_the_default_dialect(source, tmp_path, format, dialect):
    assert f"in {dialect} files" in run(source, tmp_path / "out", "--format", format).output
    formats = {value.format for value in quantised(load(tmp_path / "out")).values()}
    assert formats == {bs.format(format)}


def test_layers_take_the_last_pattern_that_matches(source, tmp_path):
    rules = [
        "*.down_proj=mxfp8",
        "lm_head.weight=mxfp6_e2m3",
        "*.layers.1.*=keep",
        "*.1.*.q_*=mxfp4",
    ]
    options = [part for rule in rules for part in ("--layers", rule)]
    out = run(source, tmp_path / "out", "--format", "nvfp4", *options).output
    assert "kept, asked for: model.layers.1" in out
    found = {name: str(value.format) for name, value in quantised(load(tmp_path / "out")).items()}
    assert found.pop("lm_head.weight") == "mxfp6_e2m3"
    assert found.pop("model.layers.0.mlp.down_proj.weight") == "mxfp8"
    assert found.pop("model.layers.1.self_attn.q_proj.weight") == "mxfp4"
    assert set(found.values()) == {"nvfp4"}
    assert all(name.startswith("model.layers.0.") for name in found)


def test_what_does_not_fit_is_kept_and_said(tmp_path):
    tensors = {
        "a.odd.weight": torch.randn(8, 40),
        "a.even.weight": torch.randn(8, 64),
        "a.experts.gate_up_proj": torch.randn(2, 8, 64),
        "a.experts.down_proj": torch.randn(2, 64, 32),
        "a.gate.weight": torch.randn(2, 64),
        "a.router.weight": torch.randn(2, 64),
        "a.q_norm.weight": torch.randn(4, 64),
        "a.weight": torch.randn(8, 64).to(torch.int32),
    }
    source = write_model(tmp_path / "source", tensors)
    out = run(source, tmp_path / "ct", "--format", "nvfp4").output
    assert "kept, k = 40 is not a multiple of the block of nvfp4: a.odd.weight" in out
    assert "holds matrices [n, k], not [2, 8, 64]: a.experts.gate_up_proj" in out
    assert quantised(load(tmp_path / "ct")).keys() == {"a.even.weight"}
    run(source, tmp_path / "ours", "--format", "nvfp4", "--dialect", "blockscale")
    found = quantised(load(tmp_path / "ours"))
    assert found.keys() == {"a.even.weight", "a.experts.gate_up_proj", "a.experts.down_proj"}
    for name, value in found.items():
        assert value == bs.quantize(tensors[name], bs.NVFP4)


@pytest.mark.parametrize(
    ("model_type", "name", "shape"),
    [("gpt2", "h.0.mlp.c_fc.weight", (64, 32)), ("gpt_oss", "l.experts.gate_up_proj", (2, 64, 32))],
)
def test_transposed_weights_are_kept(tmp_path, model_type, name, shape):
    tensors = {name: torch.randn(shape), "a.lin.weight": torch.randn(8, 64)}
    source = write_model(tmp_path / "source", tensors, model_type=model_type)
    out = run(source, tmp_path / "out", "--format", "kbit4").output
    assert f"kept, this model stores it as [k, n]: {name}" in out


def test_scales_can_be_searched(source, tmp_path):
    run(source, tmp_path / "out", "--format", "mxfp4", "--scale", "mse")
    before = load(source)
    for name, value in quantised(load(tmp_path / "out")).items():
        assert value == bs.quantize(before[name], bs.MXFP4, scale="mse")


# --- sources that are quantised already ---


def test_a_change_of_dialect_keeps_every_bit(source, tmp_path):
    run(source, tmp_path / "a", "--format", "nvfp4", "--scale", "mse")
    run(tmp_path / "a", tmp_path / "b", "--format", "nvfp4", "--dialect", "modelopt")
    run(tmp_path / "b", tmp_path / "c", "--format", "nvfp4", "--dialect", "blockscale")
    run(tmp_path / "c", tmp_path / "d", "--format", "nvfp4")
    first, last = (load_file(tmp_path / name / "model.safetensors") for name in "ad")
    assert first.keys() == last.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor.view(torch.uint8), last[name].view(torch.uint8)), name
    assert not (tmp_path / "c" / "hf_quant_config.json").exists()


def test_mxfp4_becomes_nvfp4_without_loss_and_with_shared_scales(source, tmp_path):
    run(source, tmp_path / "mx", "--format", "mxfp4")
    run(tmp_path / "mx", tmp_path / "nv", "--format", "nvfp4")
    before, after = quantised(load(tmp_path / "mx")), quantised(load(tmp_path / "nv"))
    for name, value in after.items():
        assert torch.equal(value.dequantize(), before[name].dequantize()), name
    q, k = (after[f"model.layers.0.self_attn.{p}_proj.weight"] for p in "qk")
    assert q.tensor_scale == k.tensor_scale


def test_gpt_oss_becomes_nvfp4_without_loss(tmp_path):
    experts, i, h = 2, 32, 64
    tensors = {"l.router.weight": torch.randn(experts, h)}
    for name, rows, k in (("gate_up_proj", 2 * i, h), ("down_proj", h, i)):
        shape = (experts, rows, k // 32)
        tensors[f"l.experts.{name}_blocks"] = torch.randint(0, 256, (*shape, 16)).byte()
        tensors[f"l.experts.{name}_scales"] = torch.randint(120, 130, shape).byte()
    source = write_model(
        tmp_path / "a",
        tensors,
        model_type="gpt_oss",
        quantization_config={"quant_method": "mxfp4"},
    )
    run(source, tmp_path / "b", "--format", "nvfp4", "--dialect", "blockscale")
    before, after = quantised(load(source)), quantised(load(tmp_path / "b"))
    assert after.keys() == {"l.experts.gate_up_proj", "l.experts.down_proj"}
    for name, value in after.items():
        assert value.format == bs.NVFP4
        assert torch.equal(value.dequantize(), before[name].dequantize())


def test_one_file_is_a_source_too(source, tmp_path):
    tensors = llama(1)
    bs.save(tensors, tmp_path / "alone.safetensors")
    run(tmp_path / "alone.safetensors", tmp_path / "out", "--format", "mxfp8")
    assert len(quantised(load(tmp_path / "out"))) == PROJECTIONS // 2


def test_requantised_where_it_must_be(source, tmp_path):
    run(source, tmp_path / "a", "--format", "mxfp8")
    run(tmp_path / "a", tmp_path / "b", "--format", "kbit4")
    before = quantised(load(tmp_path / "a"))
    for name, value in quantised(load(tmp_path / "b")).items():
        assert value == bs.quantize(before[name].dequantize(), bs.KBIT4)


def test_keeping_a_quantised_layer_keeps_its_format(source, tmp_path):
    run(source, tmp_path / "a", "--format", "mxfp8")
    run(tmp_path / "a", tmp_path / "b", "--format", "mxfp4", "--layers", "*.down_proj=keep")
    before, after = load(tmp_path / "a"), load(tmp_path / "b")
    name = "model.layers.0.mlp.down_proj.weight"
    assert after[name] == before[name]


def test_scaled_inputs_stay_with_nvfp4_and_go_with_others(tmp_path):
    tensors = {
        "a.weight": bs.quantize(torch.randn(8, 64), bs.NVFP4),
        "a.input_scale": torch.tensor(0.25),
    }
    bs.save(tensors, tmp_path / "a", dialect="modelopt")
    run(tmp_path / "a", tmp_path / "b", "--format", "nvfp4")
    assert load(tmp_path / "b") == tensors
    out = run(tmp_path / "b", tmp_path / "c", "--format", "mxfp8").output
    assert "dropped, only nvfp4 weights have scaled inputs: a.input_scale" in out
    assert load(tmp_path / "c").keys() == {"a.weight"}


# --- failures ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "nvpf4"], "did you mean 'nvfp4'"),
        (["--format", "kbit4", "--scale", "floor"], "scale='floor' does not apply to kbit4"),
        (["--format", "kbit4", "--dialect", "modelopt"], "hold nvfp4 and mxfp8, not kbit4"),
        (["--format", "nvfp4", "--dialect", "gguf"], "unknown dialect 'gguf'"),
        (["--format", "nvfp4", "--layers", "down_proj"], "expected PATTERN=FORMAT"),
        (["--format", "nvfp4", "--layers", "*.nothing=mxfp4"], "no tensor has such a name"),
        (["--format", "nvfp4", "--layers", "*=keep"], "none of its 18 tensors would be quantised"),
        (["--format", "nvfp4", "--shard-size", "big"], "expected a size such as 5GB"),
    ],
)
def test_bad_options(source, tmp_path, monkeypatch, capsys, options, message):
    assert message in failing(monkeypatch, capsys, source, tmp_path / "out", *options)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("2 GiB", 2**31), ("7", 7), ("1.5k", 1500)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


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
    run(source, tmp_path / "out2", "--format", "nvfp4", "--layers", f"{name}=keep")
    assert name not in quantised(load(tmp_path / "out2"))


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


def test_experts_of_gpt_oss_need_our_dialect(tmp_path, monkeypatch, capsys):
    experts = {"l.experts.down_proj": bs.quantize(torch.randn(2, 8, 64), "mxfp4")}
    bs.save(experts, tmp_path / "a")
    err = failing(monkeypatch, capsys, tmp_path / "a", tmp_path / "b", "--format", "nvfp4")
    assert "the blockscale dialect holds every format and shape" in err


def test_too_little_space_is_said_first(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    err = failing(monkeypatch, capsys, source, tmp_path / "out", "--format", "nvfp4")
    assert "its disk has 0.00 GB free" in err


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


# --- interrupted runs ---

SETTINGS = Settings(bs.MXFP4, shard_size=10_000)


class Crash(BaseException):
    """Not an Exception, so that nothing but the end of the process would stop at it."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A source and what comes of it."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("whole")
    source = write_model(folder / "source", llama(1), shards=2)
    run_plan(plan_conversion(source, SETTINGS), folder / "out")
    return source, bytes_of(folder / "out")


def test_a_crash_at_any_sync_resumes_to_the_same_bytes(uninterrupted, tmp_path, monkeypatch):
    """Every file and folder is synced when it is done: stop at the first, the second, ..."""
    source, wanted = uninterrupted
    fsync, left = os.fsync, 0

    def crash(handle):
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        fsync(handle)

    monkeypatch.setattr(shards.os, "fsync", crash)
    for stop in range(1000):
        target, left = tmp_path / str(stop), stop
        try:
            run_plan(plan_conversion(source, SETTINGS), target)
        except Crash:
            complete = target.exists()
        else:
            break
        left = 10**9
        if not complete:
            run_plan(plan_conversion(source, SETTINGS), target)
        assert bytes_of(target) == wanted
        assert not target.with_name(f"{stop}.partial").exists()
    assert stop > 15


SLOW = """
import sys, time
from blockscale.checkpoint import Settings, convert, plan_conversion, run_plan
import blockscale as bs
quick = convert.convert
def slow(*args):
    time.sleep(0.05)
    return quick(*args)
convert.convert = slow
print("ready", flush=True)
run_plan(plan_conversion(sys.argv[1], Settings(bs.MXFP4, shard_size=10_000)), sys.argv[2])
"""


def test_killed_at_random_moments_it_still_ends_with_the_same_bytes(uninterrupted, tmp_path):
    source, wanted = uninterrupted
    target, kills = tmp_path / "out", 0
    moments = random.Random(5)
    while not target.exists():
        process = subprocess.Popen(
            [sys.executable, "-c", SLOW, str(source), str(target)], stdout=subprocess.PIPE
        )
        process.stdout.readline()
        if kills < 3:
            time.sleep(moments.uniform(0.0, 0.4))
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(timeout=120)
        process.stdout.close()
    assert kills > 1
    assert bytes_of(target) == wanted


def interrupt(source, target, monkeypatch, after=2):
    """Run until so many files are finished."""
    plain, done = shards.write_shard, []

    def stopping(*args):
        if len(done) == after:
            raise Crash
        done.append(args)
        return plain(*args)

    plan = plan_conversion(source, SETTINGS)
    with monkeypatch.context() as patched:
        patched.setattr(convert, "write_shard", stopping)
        with pytest.raises(Crash):
            run_plan(plan, target)
    return target.with_name(f"{target.name}.partial")


def test_a_damaged_finished_file_is_made_again(uninterrupted, tmp_path, monkeypatch):
    source, wanted = uninterrupted
    partial = interrupt(source, tmp_path / "out", monkeypatch)
    damaged, sound = sorted(partial.glob("*.safetensors"))
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    inode = sound.stat().st_ino
    run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")
    assert bytes_of(tmp_path / "out") == wanted
    assert (tmp_path / "out" / sound.name).stat().st_ino == inode


def test_other_settings_do_not_resume(uninterrupted, tmp_path, monkeypatch):
    source, wanted = uninterrupted
    interrupt(source, tmp_path / "out", monkeypatch)
    other = Settings(bs.MXFP4, scale="mse", shard_size=10_000)
    with pytest.raises(
        ValueError, match=r"otherwise \(settings: scale was 'absmax' and is 'mse'\)"
    ):
        run_plan(plan_conversion(source, other), tmp_path / "out")
    run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")
    assert bytes_of(tmp_path / "out") == wanted


def test_another_source_does_not_resume(tmp_path, monkeypatch):
    source = write_model(tmp_path / "source", llama(1))
    interrupt(source, tmp_path / "out", monkeypatch)
    shard = next(source.glob("*.safetensors"))
    os.utime(shard, ns=(0, 0))
    with pytest.raises(ValueError, match=r"begun otherwise \(source: model-00001"):
        run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")


def test_two_processes_do_not_write_one_folder(uninterrupted, tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    source, _ = uninterrupted
    partial = interrupt(source, tmp_path / "out", monkeypatch)
    handle = os.open(partial, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(RuntimeError, match="is being written by another process"):
        run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")
    os.close(handle)


def test_a_strange_partial_folder_is_left_alone(uninterrupted, tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "diary.txt").write_text("x")
    with pytest.raises(FileExistsError, match=r"holds diary.txt and no"):
        run_plan(plan_conversion(uninterrupted[0], SETTINGS), tmp_path / "out")
    assert (tmp_path / "out.partial" / "diary.txt").exists()


# --- memory and threads ---


def test_memory_is_bounded_by_the_largest_tensor(tmp_path, monkeypatch):
    """Results in flight never outgrow twice the largest unit, and one being written."""
    tensors = {f"l{i}.weight": torch.randn(32, 64) for i in range(20)}
    tensors["big.weight"] = torch.randn(64, 64)
    source = write_model(tmp_path / "source", tensors)
    plan = plan_conversion(source, SETTINGS)
    largest = max(unit.nbytes for unit in plan.units)
    alive, most = 0, 0
    quick = convert.convert

    def forget(size):
        nonlocal alive
        alive -= size

    def counted(checkpoint, unit, *rest):
        nonlocal alive, most
        alive += unit.nbytes
        most = max(most, alive)
        values = quick(checkpoint, unit, *rest)
        weakref.finalize(values[0].codes, forget, unit.nbytes)
        return values

    monkeypatch.setattr(convert, "convert", counted)
    before = torch.get_num_threads()
    run_plan(plan, tmp_path / "out")
    assert largest <= most <= 3 * largest
    assert torch.get_num_threads() == before


PEAK = """
import sys
from blockscale.checkpoint import Settings, plan_conversion, run_plan
from blockscale.formats import NVFP4

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

few, every, target = sys.argv[1:]
run_plan(plan_conversion(few, Settings(NVFP4)), target + ".few")
before = peak()
run_plan(plan_conversion(every, Settings(NVFP4)), target)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say")
def test_the_source_does_not_stay_in_memory(tmp_path):
    """Not as mapped pages either: more tensors of a size take no more than a few of them do."""
    weight = torch.randn(512, 1024).bfloat16()
    tensors = {f"l{i}.weight": weight.clone() for i in range(128)}
    few = dict(list(tensors.items())[:8])
    sources = write_model(tmp_path / "few", few), write_model(tmp_path / "all", tensors, shards=2)
    command = [sys.executable, "-c", PEAK, *map(str, sources), str(tmp_path / "out")]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < len(tensors) * weight.nbytes / 2


def test_progress_reaches_the_end_also_after_a_resume(uninterrupted, tmp_path, monkeypatch):
    source, _ = uninterrupted
    interrupt(source, tmp_path / "out", monkeypatch)
    plan = plan_conversion(source, SETTINGS)
    seen = []
    run_plan(plan, tmp_path / "out", lambda size, count: seen.append((size, count)))
    assert sum(size for size, _ in seen) == sum(unit.nbytes for unit in plan.units)
    assert sum(count for _, count in seen) == len(plan.checkpoint.tensors)


def test_it_runs_as_a_command(source, tmp_path):
    command = [sys.executable, "-m", "blockscale", "quantize", str(source), str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--format", "mxfp8"], capture_output=True, text=True, check=True
    )
    assert f"wrote {tmp_path / 'out'}" in done.stdout
    assert len(quantised(load(tmp_path / "out"))) == PROJECTIONS
