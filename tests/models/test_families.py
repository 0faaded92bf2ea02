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


def decoded(folder, source, target):
    """The same model in plain files: those of the source with the numbers of the folder."""
    tensors = {
        name: value.dequantize() if isinstance(value, bs.QTensor) else value
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
    twin = decoded(folder, source, tmp_path / "twin")
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
