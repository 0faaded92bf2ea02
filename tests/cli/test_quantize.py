"""`blockscale quantize`: what it writes, and what it leaves alone."""

import json
import subprocess
import sys
from inspect import signature

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import blockscale as bs
from blockscale import cli
from blockscale.checkpoint import load
from blockscale.cli.quantize import parse_size
from checkpoint.models import llama, write_model
from cli.quantizing import failing, quantised, run

UNTIED = {"tie_word_embeddings": False}
PROJECTIONS = 14  # of `llama()`


def test_help():
    out = CliRunner().invoke(cli.commands, ["quantize", "--help"]).output
    for option in ("--format", "--layers", "--scale", "--dialect", "--shard-size"):
        assert option in out


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("2 GiB", 2**31), ("7", 7), ("1.5k", 1500)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


def test_an_empty_folder_is_written_to(source, tmp_path):
    (tmp_path / "out").mkdir()
    result = run(source, tmp_path / "out", "--format", "nvfp4")
    assert result.exit_code == 0, result.output
    assert len(quantised(tmp_path / "out")) == PROJECTIONS


def test_linear_layers_are_quantised_and_the_rest_is_as_it_was(source, tmp_path):
    result = run(source, tmp_path / "out", "--format", "nvfp4", "--shard-size", "20KB")
    assert result.exit_code == 0, result.output
    assert "14 to nvfp4, in compressed-tensors files" in result.output
    found, before = load(tmp_path / "out"), load(source)
    assert found.keys() == before.keys()
    assert len(quantised(tmp_path / "out")) == PROJECTIONS
    for name, value in found.items():
        if isinstance(value, bs.QTensor):
            scales = {"scale": "mse", "tensor_scale": value.tensor_scale}
            assert value == bs.quantize(before[name], bs.NVFP4, **scales)
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
    found, before = quantised(tmp_path / "out"), load(source)
    for parts in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        names = [n for n in found if n.split(".")[-2] in parts and ".1." in n]
        assert len(names) == len(parts)
        together = bs.quantize(torch.cat([before[n] for n in names]), bs.NVFP4)
        assert {found[n].tensor_scale.item() for n in names} == {together.tensor_scale.item()}
    alone = "model.layers.0.self_attn.o_proj.weight"
    assert found[alone] == bs.quantize(before[alone], bs.NVFP4, scale="mse")


@pytest.mark.parametrize(
    "parts",
    [
        ("in_proj_qkv", "in_proj_z"),
        ("in_proj_b", "in_proj_a"),
        ("c_fc_0", "c_fc_1"),
        ("fc1", "fc3"),
        ("wq", "wk", "wv"),
        ("q_proj", "k_proj", "v_proj", "g_proj"),
        ("q_proj", "k_proj", "v_proj", "b_proj"),
    ],
)
def test_what_vllm_fuses_shares_a_tensor_scale(parts, tmp_path):
    weights = {f"l.{part}.weight": torch.randn(8, 64) * (1 + i) for i, part in enumerate(parts)}
    source = write_model(tmp_path / "source", {**weights, "l.o_proj.weight": torch.randn(8, 64)})
    run(source, tmp_path / "out", "--format", "nvfp4")
    found = quantised(tmp_path / "out")
    together = bs.quantize(torch.cat([*weights.values()]), bs.NVFP4).tensor_scale
    assert {found[name].tensor_scale.item() for name in weights} == {together.item()}
    assert found["l.o_proj.weight"].tensor_scale.item() != together.item()


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
    formats = {value.format for value in quantised(tmp_path / "out").values()}
    assert formats == {bs.format(format)}


def test_layers_take_the_first_pattern_that_matches(source, tmp_path):
    rules = [
        "*.1.*.q_*=mxfp4",
        "*.layers.1.*=keep",
        "lm_head.weight=mxfp6_e2m3",
        "*.down_proj=mxfp8",
    ]
    options = [part for rule in rules for part in ("--layers", rule)]
    out = run(source, tmp_path / "out", "--format", "nvfp4", *options).output
    assert "kept, asked for: model.layers.1" in out
    found = {name: str(value.format) for name, value in quantised(tmp_path / "out").items()}
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
        "a.gate.wg.weight": torch.randn(2, 64),
        "a.router.weight": torch.randn(2, 64),
        "a.modality_router.weight": torch.randn(2, 64),
        "a.rel_pos_emb.weight": torch.randn(8, 64),
        "a.audio_bos_eos_token.weight": torch.randn(2, 64),
        "a.q_norm.weight": torch.randn(4, 64),
        "a.weight": torch.randn(8, 64).to(torch.int32),
        "a.f64.weight": torch.randn(8, 64).double(),
        "a.int8.weight": torch.randn(8, 64).to(torch.int8),
        "a.fp8.weight": torch.randn(8, 64).to(torch.float8_e4m3fn),
        "a.moe.input_linear.weight": torch.randn(2, 8, 64),
        "a.patches.weight": torch.randn(4, 3, 2, 32),
        "a.table": torch.randn(8, 64),
        "a.bias": torch.randn(64),
    }
    source = write_model(tmp_path / "source", tensors)
    out = run(
        source, tmp_path / "ct", "--format", "nvfp4", "--dialect", "compressed-tensors"
    ).output
    assert "kept, k = 40 is not a multiple of the block of nvfp4: a.odd.weight" in out
    assert "holds matrices [n, k], not [2, 8, 64]: a.experts.gate_up_proj" in out
    for line in (
        "kept, by default: *.gate.weight: a.gate.weight",
        "kept, by default: *.gate.*: a.gate.wg.weight",
        "kept, by default: *.router.*: a.router.weight",
        "kept, by default: *_router.weight: a.modality_router.weight",
        "kept, by default: *_emb.weight: a.rel_pos_emb.weight",
        "kept, by default: *_bos_eos_token.weight: a.audio_bos_eos_token.weight",
        "kept, by default: *norm*: a.q_norm.weight",
        "kept, its numbers are int32: a.weight",
        "kept, its numbers are float64: a.f64.weight",
        "kept, its numbers are int8: a.int8.weight",
        "kept, its numbers are float8_e4m3fn: a.fp8.weight",
        "kept, 3 dimensions and not called like fused experts: a.moe.input_linear.weight",
        "kept, 4 dimensions, where matrices have 2 and experts 3: a.patches.weight",
        "kept, a matrix that is not called *.weight: a.table",
        "kept, no matrix: a.bias",
    ):
        assert line in out.splitlines()
    assert quantised(tmp_path / "ct").keys() == {"a.even.weight"}
    run(source, tmp_path / "ours", "--format", "nvfp4")  # the dialect that holds them all
    found = quantised(tmp_path / "ours")
    assert found.keys() == {"a.even.weight", "a.experts.gate_up_proj", "a.experts.down_proj"}
    for name, value in found.items():
        assert value == bs.quantize(tensors[name], bs.NVFP4, scale="mse")


def test_embeddings_of_encoders_and_decoders_are_kept(tmp_path):
    """BART and T5 call theirs `shared`; shared experts are linear layers."""
    attention = "encoder.block.0.layer.0.SelfAttention"
    tensors = {
        "shared.weight": torch.randn(32, 64),
        "model.shared.weight": torch.randn(32, 64),
        f"{attention}.relative_attention_bias.weight": torch.randn(32, 16),
        f"{attention}.q.weight": torch.randn(64, 64),
        "l.mlp.shared_expert.up_proj.weight": torch.randn(64, 64),
        "l.mlp.shared_experts.up_proj.weight": torch.randn(64, 64),
        "l.shared_head.weight": torch.randn(64, 64),
    }
    source = write_model(tmp_path / "source", tensors)
    run(source, tmp_path / "out", "--format", "nvfp4")
    assert list(quantised(tmp_path / "out")) == sorted(list(tensors)[3:])


@pytest.mark.parametrize("embedding", ["shared", "model.shared", "model.embed_tokens"])
def test_a_tied_head_is_called_plain(tmp_path, embedding):
    tensors = {f"{embedding}.weight": torch.randn(32, 64), "l.q.weight": torch.randn(64, 64)}
    source = write_model(tmp_path / "source", tensors)
    run(source, tmp_path / "out", "--format", "nvfp4")
    described = json.loads((tmp_path / "out" / "config.json").read_text())
    assert described["quantization_config"]["ignore"] == [embedding, "lm_head"]


@pytest.mark.parametrize("head", ["lm_head", "language_model.lm_head"])
def test_a_quantised_head_is_not_tied(tmp_path, head):
    tensors = {f"{head}.weight": torch.randn(32, 64), "l.q.weight": torch.randn(64, 64)}
    text = {"tie_word_embeddings": True, "vocab_size": 32}
    source = write_model(
        tmp_path / "source", tensors, tie_word_embeddings=True, text_config=text, hidden_size=64
    )
    before = json.loads((source / "config.json").read_text())
    for name, rules in (("plain", ()), ("packed", ("--layers", f"{head}=nvfp4"))):
        run(source, tmp_path / name, "--format", "nvfp4", *rules)
        found = json.loads((tmp_path / name / "config.json").read_text())
        del found["quantization_config"]
        if name == "packed":
            assert found == before | UNTIED | {"text_config": text | UNTIED}
        else:
            assert found == before


FUSED = {"l.mlp.experts.gate_up_proj": (4, 64, 32), "l.mlp.experts.down_proj": (4, 32, 32)}
GRANITE = {"l.moe.input_linear.weight": (4, 64, 32), "l.moe.output_linear.weight": (4, 32, 32)}


@pytest.mark.parametrize("shapes", [FUSED, GRANITE])
@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
def test_fused_experts_that_stay_plain_are_called_so(tmp_path, dialect, shapes):
    """By their module, and by the first expert's layers, after which vLLM looks."""
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    tensors |= {"l.o_proj.weight": torch.randn(64, 64), "l.conv.weight": torch.randn(64, 1, 4)}
    source = write_model(tmp_path / "source", tensors)
    run(source, tmp_path / "out", "--format", "nvfp4", "--dialect", dialect)
    described = json.loads((tmp_path / "out" / "config.json").read_text())
    experts = "l.mlp.experts" if shapes is FUSED else "l.moe.experts"
    layers = {f"{experts}.0.{part}_proj" for part in ("gate", "up", "down")}
    assert set(described["quantization_config"]["ignore"]) == {experts, *layers}
    assert len(described["quantization_config"]["ignore"]) == 4


def test_a_model_of_which_nothing_is_quantised_says_why(tmp_path, monkeypatch, capsys):
    tensors = {"h.0.attn.c_attn.weight": torch.randn(64, 96), "h.0.ln_1.weight": torch.ones(64)}
    source = write_model(tmp_path / "source", tensors, model_type="gpt2")
    err = failing(monkeypatch, capsys, source, tmp_path / "out", "--format", "nvfp4")
    assert "none of its 2 tensors would be quantised" in err
    assert "kept, this model stores it as [k, n]: h.0.attn.c_attn.weight" in err
    assert "kept, no matrix: h.0.ln_1.weight" in err


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2"},
        {"model_type": "openai-gpt"},
        {"model_type": "vision-encoder-decoder", "decoder": {"model_type": "gpt2"}},
    ],
)
def test_transposed_matrices_are_kept(tmp_path, config):
    tensors = {"h.0.mlp.c_fc.weight": torch.randn(64, 32), "a.lin.weight": torch.randn(8, 64)}
    source = write_model(tmp_path / "source", tensors, **config)
    out = run(source, tmp_path / "out", "--format", "kbit4").output
    assert "kept, this model stores it as [k, n]: h.0.mlp.c_fc.weight" in out


@pytest.mark.parametrize("options", [(), ("--scale", "mse"), ("--scale", "absmax")])
def test_scales_are_searched_unless_asked_otherwise(source, tmp_path, options):
    """As in `quantize_`, whose default is this one."""
    run(source, tmp_path / "out", "--format", "mxfp4", *options)
    before = load(source)
    for name, value in quantised(tmp_path / "out").items():
        assert value == bs.quantize(before[name], bs.MXFP4, scale=options[1] if options else "mse")
    assert signature(bs.quantize_).parameters["scale"].default == "mse"


def test_it_runs_as_a_command(source, tmp_path):
    command = [sys.executable, "-m", "blockscale", "quantize", str(source), str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--format", "mxfp8"], capture_output=True, text=True, check=True
    )
    assert f"wrote {tmp_path / 'out'}" in done.stdout
    assert len(quantised(tmp_path / "out")) == PROJECTIONS


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
    before, after = quantised(tmp_path / "mx"), quantised(tmp_path / "nv")
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
    before, after = quantised(source), quantised(tmp_path / "b")
    assert after.keys() == {"l.experts.gate_up_proj", "l.experts.down_proj"}
    for name, value in after.items():
        assert value.format == bs.NVFP4
        assert torch.equal(value.dequantize(), before[name].dequantize())


def test_one_file_is_a_source_too(source, tmp_path):
    tensors = llama(1)
    bs.save(tensors, tmp_path / "alone.safetensors")
    run(tmp_path / "alone.safetensors", tmp_path / "out", "--format", "mxfp8")
    assert len(quantised(tmp_path / "out")) == PROJECTIONS // 2


def test_requantised_where_it_must_be(source, tmp_path):
    run(source, tmp_path / "a", "--format", "mxfp8")
    run(tmp_path / "a", tmp_path / "b", "--format", "kbit4")
    before = quantised(tmp_path / "a")
    for name, value in quantised(tmp_path / "b").items():
        assert value == bs.quantize(before[name].dequantize(), bs.KBIT4, scale="mse")


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
