"""Parts of a weight that do not fit each other, in every dialect: an error names the tensor."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.checkpoint import Checkpoint, load, save
from blockscale.checkpoint.dialects import compressed_tensors
from checkpoint.damage import rewrite_json, rewrite_tensors


def one(tmp_path, fmt, dialect):
    save({"a.weight": bs.quantize(torch.randn(4, 64), fmt)}, tmp_path / "x", dialect=dialect)
    return tmp_path / "x"


def drop(name):
    return lambda tensors: tensors.pop(name)


def put(name, change):
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


CT = "compressed-tensors"


@pytest.mark.parametrize(
    ("name", "dialect", "change", "message"),
    [
        ("nvfp4", CT, drop("a.weight_packed"), "a has quantised weights but no weight"),
        ("nvfp4", CT, drop("a.weight_global_scale"), "weight_scale must be torch.uint8"),
        ("nvfp4", CT, put("a.weight_global_scale", lambda t: t.repeat(2)), "must be one number"),
        ("nvfp4", CT, put("a.weight_global_scale", lambda t: 0 * t), "a.weight: .*positive"),
        (
            "mxfp4",
            CT,
            put("a.weight_scale", lambda t: t[:, :1]),
            r"a.weight_packed holds \[4, 64\], so a.weight_scale must be \[4, 2\], got \[4, 1\]",
        ),
        ("mxfp8", CT, put("a.weight", torch.Tensor.float), "must be torch.float8_e4m3fn, got"),
        ("nvfp4", "modelopt", drop("a.weight"), "a has quantised weights but no weight"),
        ("nvfp4", "modelopt", put("a.weight_scale", torch.Tensor.float), "float8_e4m3fn, got"),
        ("nvfp4", "modelopt", put("a.weight_scale_2", lambda t: t.repeat(3)), "one number"),
        ("mxfp8", "modelopt", put("a.weight", lambda t: t[:, :32]), r"must be \[4, 1\]"),
        ("mxfp8", "modelopt", drop("a.weight_scale"), "a.weight is .* has no scales of modelopt"),
        ("nvfp4", "modelopt", drop("a.weight_scale"), "a.weight is .* has no scales of modelopt"),
        ("mxfp8", CT, drop("a.weight_scale"), "a.weight is .* has no scales of compressed"),
        ("kbit4", "blockscale", drop("a.weight_codebook"), "is kbit4 but has no codebook"),
        ("kbit4", "blockscale", put("a.weight_codebook", lambda t: -t), "a.weight: .*must ascend"),
        ("kbit4", "blockscale", put("a.weight_scale", torch.Tensor.int), "must have dtype"),
        ("kbit4", "blockscale", put("a.weight_scale", lambda t: t[:3]), "a.weight_scale must"),
        ("kbit4", "blockscale", put("a.weight_tensor_scale", lambda t: t / 0), "positive"),
    ],
)
def test_parts_that_do_not_fit(name, dialect, change, message, tmp_path):
    folder = one(tmp_path, name, dialect)
    rewrite_tensors(folder / "model.safetensors", change)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_blockscale_versions_and_names(tmp_path):
    folder = one(tmp_path, "kbit4", "blockscale")
    config = folder / "config.json"
    before = config.read_text()
    for change, message in [
        ({"version": 3}, "layout version 3 is not read"),
        ({"version": 1, "tensors": None}, "lists no tensors"),
        ({"version": 1, "tensors": {"a.weight": "kbit9"}}, "unknown format 'kbit9'"),
        ({"version": 1, "tensors": {"b.weight": "kbit4"}}, "b.weight is kbit4 but has no codes"),
    ]:
        config.write_text(before)
        rewrite_json(config, lambda c, change=change: c["quantization_config"].update(change))
        with pytest.raises(ValueError, match=message):
            load(folder)


@pytest.mark.parametrize("label", ["int-quantized", 7, ["nvfp4"], {"a": 1}])
def test_compressed_tensors_formats_that_are_not_ours(tmp_path, label):
    folder = one(tmp_path, "mxfp4", CT)
    group = {"format": label}
    rewrite_json(
        folder / "config.json", lambda c: c["quantization_config"]["config_groups"].update(g=group)
    )
    with pytest.raises(ValueError, match=f"{folder.name}: compressed-tensors format .* not read"):
        load(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"kbit9", "a.weight: unknown format 'kbit9'"),
        (b"\xff\xfe", "a.weight: 'ascii' codec"),
        (b"x" * 1000, "a.weight must name a format"),
        (b"kbit5", "a.weight"),  # of other shapes
    ],
)
def test_names_of_formats_that_are_none(tmp_path, text, message):
    folder = one(tmp_path, "kbit4", "blockscale")
    tensors = load_file(folder / "model.safetensors")
    tensors["a.weight"] = torch.tensor(list(text), dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize("role", ["codes", "scale", "tensor_scale", "codebook"])
def test_a_part_that_is_missing_is_named(tmp_path, role):
    folder = one(tmp_path, "kbit4", "blockscale")
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"a.weight_{role}"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=f"a.weight is kbit4 but has no {role}"):
        load(folder)


def test_modelopt_algorithms_that_are_not_ours(tmp_path):
    folder = one(tmp_path, "nvfp4", "modelopt")
    rewrite_json(
        folder / "config.json", lambda c: c["quantization_config"].update(quant_algo="FP8")
    )
    with pytest.raises(ValueError, match="ModelOpt quant_algo 'FP8' is not read"):
        load(folder)


@pytest.mark.parametrize("algorithm", ["NVFP4_AWQ", "NVFP4_SVD", "FP8", None, ["NVFP4"]])
def test_modelopt_holds_every_layer_of_mixed_ones_to_its_algorithms(tmp_path, algorithm):
    folder = one(tmp_path, "nvfp4", "modelopt")
    layers = {"b": {"quant_algo": "MXFP8"}, "a": {"quant_algo": algorithm}}
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    rewrite_json(folder / "config.json", lambda c: c["quantization_config"].update(mixed))
    with pytest.raises(ValueError, match=r"quant_algo .* of a is not read: only NVFP4, W4A16"):
        load(folder)


def test_modelopt_layers_may_be_listed_in_the_side_file_alone(tmp_path):
    folder = one(tmp_path, "nvfp4", "modelopt")
    rewrite_json(
        folder / "config.json",
        lambda c: c["quantization_config"].update(quant_algo="MIXED_PRECISION"),
    )
    with pytest.raises(ValueError, match="'MIXED_PRECISION' without quantized_layers is not read"):
        load(folder)
    for algorithm, refusal in {"NVFP4": None, "NVFP4_AWQ": "'NVFP4_AWQ' of a is not read"}.items():
        layers = {"a": {"quant_algo": algorithm}}
        rewrite_json(
            folder / "hf_quant_config.json",
            lambda side, layers=layers: side["quantization"].update(quantized_layers=layers),
        )
        if refusal is None:
            assert load(folder)["a.weight"].format == bs.NVFP4
        else:
            with pytest.raises(ValueError, match=refusal):
                load(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("l.experts.gate_up_proj_weight_scale", "fused experts, which ModelOpt packs along k"),
        ("a.pre_quant_scale", "weights whose inputs are scaled column by column"),
    ],
)
def test_modelopt_tensors_that_change_the_meaning_of_weights_are_refused(tmp_path, name, message):
    folder = one(tmp_path, "nvfp4", "modelopt")
    rewrite_tensors(folder / "model.safetensors", lambda t: t.update({name: torch.ones(64)}))
    with pytest.raises(ValueError, match=f"{folder.name}: {name}: {message}.* not read"):
        load(folder)


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ({"config_groups": {"R4": {"type": "hadamard"}}}, "transform_config .*R4.* is not read"),
        ([1], "transform_config .* is not read"),
        ({}, None),
        ({"config_groups": {}}, None),
        (None, None),
    ],
)
def test_weights_for_transformed_activations_are_refused(tmp_path, transforms, message):
    folder = one(tmp_path, "nvfp4", CT)
    rewrite_json(
        folder / "config.json",
        lambda c: c["quantization_config"].update(transform_config=transforms),
    )
    if message is None:
        assert load(folder)["a.weight"].format == bs.NVFP4
    else:
        with pytest.raises(ValueError, match=message):
            load(folder)


@pytest.mark.parametrize("symmetric", [True, False, None])
def test_weights_with_zero_points_are_refused(tmp_path, symmetric):
    folder = one(tmp_path, "mxfp8", CT)
    rewrite_json(
        folder / "config.json",
        lambda c: c["quantization_config"]["config_groups"]["group_0"]["weights"].update(
            symmetric=symmetric
        ),
    )
    described = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert compressed_tensors.reads(described) == (symmetric is not False)
    if symmetric is False:
        with pytest.raises(ValueError, match=r"x: weights with zero points .* are not read"):
            load(folder)
    else:
        assert load(folder).keys() == {"a.weight"}


def with_input_scale(tmp_path, scale):
    folder = one(tmp_path, "nvfp4", CT)
    change = {"a.input_global_scale": torch.tensor(scale)}
    rewrite_tensors(folder / "model.safetensors", lambda tensors: tensors.update(change))
    return folder


def test_scales_of_inputs_are_one_number(tmp_path):
    folder = with_input_scale(tmp_path, [1.0, 1.0])
    with pytest.raises(ValueError, match=r"x: a.input_global_scale must be one number, got .*2\]"):
        load(folder)


@pytest.mark.parametrize(("stored", "read"), [(0.0, math.inf), (math.inf, 0.0)])
def test_scales_of_inputs_that_nobody_saw_are_read_and_written_as_they_are(tmp_path, stored, read):
    """As experts have them that got no token when a model was calibrated."""
    tensors = load(with_input_scale(tmp_path, [stored]))
    assert tensors["a.input_scale"].item() == read
    save(tensors, tmp_path / "again", dialect=CT)
    written = load_file(tmp_path / "again" / "model.safetensors")
    assert written["a.input_global_scale"].tolist() == [stored]


def bnb(tmp_path, state, **parts):
    text = json.dumps(state).encode() if isinstance(state, dict) else state
    tensors = {
        "a.weight": torch.zeros(64, 1, dtype=torch.uint8),
        "a.weight.absmax": torch.ones(2),
        "a.weight.quant_map": torch.linspace(-1, 1, 16),
        "a.weight.quant_state.bitsandbytes__nf4": torch.tensor(list(text), dtype=torch.uint8),
    }
    tensors |= {f"a.weight.{name}": part for name, part in parts.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"quantization_config": {"quant_method": "bitsandbytes"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return load(tmp_path)


GOOD = {"blocksize": 64, "shape": [2, 64]}

NESTED = {**GOOD, "nested_offset": 0.5, "nested_blocksize": 256}


@pytest.mark.parametrize(
    ("state", "parts", "message"),
    [
        (b"{", {}, "is not JSON"),
        (b"[1]", {}, "must be a JSON object"),
        (b'{"shape":' + b"[" * 9 + b"]" * 9 + b"}", {}, "nested more than 2 deep"),
        (b'{"a":[' + b"0," * 100 + b"0]}", {}, "values, more than a description can need"),
        ({"blocksize": 64}, {}, "is no state of a matrix"),
        ({"blocksize": 64, "shape": [2]}, {}, "is no state of a matrix"),
        ({"blocksize": 0, "shape": [2, 64]}, {}, "sizes must be positive"),
        ({"blocksize": True, "shape": [2, 64]}, {}, "sizes must be positive"),
        ({"blocksize": 43, "shape": [3, 43]}, {}, "has an odd number"),
        ({**NESTED, "nested_offset": 10**400}, {}, "nested_offset must be a number"),
        ({**NESTED, "nested_offset": "1"}, {}, "nested_offset must be a number"),
        ({**NESTED, "nested_offset": float("nan")}, {}, "nested_offset must be a number"),
        ({"blocksize": 64, "shape": [4, 32]}, {}, "blocks of 64 that cross its rows of 32"),
        ({"blocksize": 64, "shape": [2**40, 64]}, {}, "a.weight must have .* bytes"),
        ({**GOOD, "nested_offset": 1.0}, {}, "is no state of a matrix"),
        ({**GOOD, "nested_offset": 1.0, "nested_blocksize": 256}, {}, "nested_absmax is missing"),
        (GOOD, {"absmax": torch.ones(3)}, "a.weight.absmax must have 2 values"),
        (GOOD, {"absmax": torch.ones(2).double()}, "has dtype torch.float64"),
        (b"{}" + b" " * 2**17, {}, "must be a few bytes"),
    ],
)
def test_bitsandbytes_states_that_do_not_fit(state, parts, message, tmp_path):
    assert bnb(tmp_path, GOOD)["a.weight"].shape == (2, 64)
    with pytest.raises(ValueError, match=message):
        bnb(tmp_path, state, **parts)


@pytest.mark.parametrize("ends", [("_blocks", "_scales"), ("_bias",)])
def test_gate_and_up_of_gpt_oss_have_as_many_rows(tmp_path, ends):
    name = "l.experts.gate_up_proj"
    weight, bias = bs.quantize(torch.randn(2, 4, 64), "mxfp4"), torch.randn(2, 4)
    save({name: weight, f"{name}_bias": bias}, tmp_path / "x", dialect="gpt-oss")

    def cut(tensors):
        odd = {
            each: part[:, :3].contiguous() for each, part in tensors.items() if each.endswith(ends)
        }
        tensors.update(odd)

    rewrite_tensors(tmp_path / "x" / "model.safetensors", cut)
    with pytest.raises(ValueError, match=f"/x: {name}.*: gate and up must have as many rows"):
        load(tmp_path / "x")
    whole = {name: weight, f"{name}_bias": bias}
    odd = {name: weight[:, :3]} if "_blocks" in ends else {**whole, f"{name}_bias": bias[:, :3]}
    with pytest.raises(ValueError, match="gate and up must have as many rows"):
        save(odd, tmp_path / "y", dialect="gpt-oss")


def test_bitsandbytes_weights_without_a_state(tmp_path):
    bnb(tmp_path, GOOD)
    state = drop("a.weight.quant_state.bitsandbytes__nf4")
    rewrite_tensors(tmp_path / "model.safetensors", state)
    with pytest.raises(ValueError, match=r"a\.weight is torch\.uint8, and has no scales"):
        load(tmp_path)


@pytest.mark.parametrize("dialect", [CT, "modelopt", "blockscale"])
def test_bytes_that_are_said_to_be_plain_are_read_as_they_are(tmp_path, dialect):
    tensors = {"a.weight": bs.quantize(torch.randn(4, 64), "nvfp4")}
    tensors["b.weight"] = torch.randint(0, 100, (4, 8), dtype=torch.int8)
    save(tensors, tmp_path / "x", dialect=dialect)
    assert torch.equal(load(tmp_path / "x")["b.weight"], tensors["b.weight"])


@pytest.mark.fault(
    "a bitsandbytes checkpoint of 2 KB claims nested blocks of 2^44 values",
    outcome="the right result: nothing is expanded beyond what the file holds",
)
def test_nested_blocks_are_expanded_no_further_than_the_file(tmp_path):
    parts = {
        "absmax": torch.tensor([3, 200], dtype=torch.uint8),
        "nested_absmax": torch.tensor([2.0]),
        "nested_quant_map": torch.linspace(-1, 1, 256),
    }
    wanted = bnb(tmp_path, NESTED, **parts)["a.weight"]
    for blocks in (2**44, 2**70):
        assert bnb(tmp_path, {**NESTED, "nested_blocksize": blocks}, **parts)["a.weight"] == wanted


@pytest.mark.fault(
    "a codebook has a million values",
    outcome="ValueError from its header alone",
)
def test_a_codebook_of_another_size_is_refused_by_its_header(tmp_path):
    folder = one(tmp_path, "kbit4", "blockscale")
    rewrite_tensors(
        folder / "model.safetensors", put("a.weight_codebook", lambda t: torch.zeros(2**20))
    )
    with pytest.raises(ValueError, match=r"a.weight_codebook must be \[16\] for kbit4, got \[1048"):
        Checkpoint(folder)


@pytest.mark.parametrize("shape", [(), (256,)])
def test_codes_that_are_no_matrix(tmp_path, shape):
    folder = one(tmp_path, "mxfp4", "blockscale")
    rewrite_tensors(
        folder / "model.safetensors",
        put("a.weight_codes", lambda t: torch.zeros(shape, dtype=torch.uint8)),
    )
    with pytest.raises(ValueError, match=r"a.weight_codes must be \[..., n, bytes\], got"):
        load(folder)


@pytest.mark.parametrize("label", [None, 7, ["kbit4"], "x" * 65, "e2m1/" + "9" * 50 + ":e8m0"])
def test_a_format_that_is_none_is_said_with_the_file(tmp_path, label):
    folder = one(tmp_path, "kbit4", "blockscale")
    change = {"version": 1, "tensors": {"a.weight": label}}
    rewrite_json(folder / "config.json", lambda c: c["quantization_config"].update(change))
    with pytest.raises(ValueError, match=f"{folder.name}: a.weight"):
        load(folder)
