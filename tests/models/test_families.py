"""From 16-bit files to text, class by class: quantise, load, predict, write.

The twin is the original class of transformers with the dequantised numbers, loaded from plain files
under the names and in the orientation of the source: nothing of this library takes part in it.
"""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.checkpoint import Settings, plan_conversion, run_plan
from blockscale.models import compare, generate, judge, load_model
from models.families import FAMILIES, write_family
from models.tiny import make_tokenizer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries, which have many

TOKENS = torch.arange(24) * 7 % 64
# Products in a row from a token to its logits (two layers of at most seven, and the head), and the
# widest sum among them: float32 rounds each of these additions once, in an order of its own.
_ROUNDINGS = (2 * 7 + 1) * 128 * 2**-24


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def format_of(family):
    """Both dialects that `quantize` writes by default, in turn."""
    return ("nvfp4", "kbit4")[list(FAMILIES).index(family) % 2]


def quantised(source, target, format, **settings):
    run_plan(plan_conversion(source, Settings(bs.format(format), **settings)), target)
    return target


def as_stored(family, name, value):
    """A tensor as the 16-bit files of a class have it; experts come out of ours as [e, n, k]."""
    if family == "GptOss" and name.endswith(("gate_up_proj", "gate_up_proj_bias")):
        n = value.shape[1]  # of weights [e, n, k] and of biases [e, n]
        value = value[:, torch.arange(n).reshape(2, -1).T.flatten()]
    if family in ("GptOss", "Llama4") and value.dim() == 3:
        value = value.mT.contiguous()
    return value


def decoded(folder, source, target, family):
    """The same model in plain files: those of the source with the numbers of the folder."""
    tensors = {
        name: as_stored(
            family, name, value.dequantize() if isinstance(value, bs.QTensor) else value
        )
        for name, value in bs.load(folder).items()
    }
    target.mkdir()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(source / "config.json", target)
    return transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()


def logits(model):
    with torch.inference_mode():
        return model(TOKENS[None]).logits[0]


def tolerance(expected):
    return _ROUNDINGS * expected.abs().max().item()


def test_a_quantised_model_predicts_what_its_numbers_say(family, tmp_path):
    source = write_family(family, tmp_path / "source")
    folder = quantised(source, tmp_path / "q", format_of(family))
    model = load_model(folder, torch.float32)
    twin = decoded(folder, source, tmp_path / "twin", family)
    expected = logits(twin)
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=tolerance(expected))
    words = make_tokenizer()
    written = generate(model, words, "low bit weights", 6)
    assert written.tokens == generate(twin, words, "low bit weights", 6).tokens
    perplexity = compare({"it": twin}, TOKENS)["it"].perplexity
    (found,) = judge({"it": model}, TOKENS)  # decodes the layers of this model from now on
    # -ln p is a logit less the logarithm of a sum over all, so it moves by twice as much at most.
    assert found.perplexity == pytest.approx(perplexity, rel=2 * tolerance(expected))
    assert found.bits_per_weight < 5
    assert not any(parameter.dim() == 3 for parameter in model.parameters())  # experts, too


def test_gpt_oss_in_its_own_layout_is_read_by_transformers_too(tmp_path):
    """Which decodes it, on request: the same numbers, in another's hands."""
    source = write_family("GptOss", tmp_path / "source")
    folder = quantised(source, tmp_path / "q", "mxfp4")
    decoding = transformers.Mxfp4Config(dequantize=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=decoding)
    expected = logits(theirs.float())  # MXFP4 is exact in the bfloat16 that it decodes to
    model = load_model(folder, torch.float32)
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=tolerance(expected))


def test_experts_that_are_called_with_stacked_rows(tmp_path):
    """Llama 4's, in place: rows come weighted, and zeros stand for tokens that went elsewhere."""
    source = write_family("Llama4", tmp_path / "source")
    model = load_model(source, torch.float32)
    experts = model.model.layers[0].feed_forward.experts
    packed = bs.nn.Experts.from_fused(experts, bs.MXFP8)
    gate_up = torch.cat([packed.gate.dequantize(), packed.up.dequantize()], 1)
    experts.gate_up_proj.data = gate_up.mT.contiguous()
    experts.down_proj.data = packed.down.dequantize().mT.contiguous()
    x = torch.randn(4 * 5, 64)
    x[torch.rand(20) < 0.6] = 0
    with torch.inference_mode():
        expected = experts(x)
        torch.testing.assert_close(packed(x), expected, rtol=0, atol=tolerance(expected))
    bs.quantize_(model, bs.MXFP8)  # measures the inputs of experts, too
    assert model.model.layers[1].feed_forward.experts.stacked
    assert logits(model).isfinite().all()


def test_loading_leaves_transformers_as_it_was(tmp_path):
    from transformers.quantizers import auto

    tables = (auto.AUTO_QUANTIZER_MAPPING, auto.AUTO_QUANTIZATION_CONFIG_MAPPING)
    before = [dict(table) for table in tables]
    source = write_family("Llama", tmp_path / "source")
    load_model(quantised(source, tmp_path / "q", "nvfp4"))
    assert [dict(table) for table in tables] == before


def test_weights_that_are_missing_are_an_error_and_not_invented(tmp_path):
    source = write_family("Llama", tmp_path / "source")
    folder = quantised(source, tmp_path / "q", "kbit4")
    for path in (source, folder):
        tensors = load_file(path / "model.safetensors")
        del tensors["lm_head.weight"]
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(
            ValueError, match=r"has no lm_head\.weight, which LlamaForCausalLM needs"
        ):
            load_model(path)
