"""Packed layers under the tensor and expert parallelism of transformers, on two gloo ranks."""

import importlib

import pytest
import torch

import blockscale as bs
from distributed.logit_bound import logit_bound
from distributed.ranks import result, run_two_ranks
from distributed.transformers_ranks import FORMATS, TOKENS, logits

transformers = pytest.importorskip("transformers", minversion="5.21")

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries, which have many

COMMON = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
MOE = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
FAMILIES = {"Llama": {"attention_bias": True, "mlp_bias": True}, "Qwen3Moe": MOE}
LOGITS = range(0, 128, 16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a model of each family, plain and as one rank quantises it, and all that ranks left."""
    folder = tmp_path_factory.mktemp("ranks")
    for family, extra in FAMILIES.items():
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**COMMON | extra)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
        for name, parameter in model.named_parameters():
            if "norm" not in name:  # biases too, which would be zeros
                torch.nn.init.normal_(parameter, std=0.1)
        model.save_pretrained(folder / family)
        bs.quantize_(model, FORMATS[family], importance=None)
        model.save_pretrained(folder / f"{family}.packed")
    run_two_ranks("transformers_ranks.py", folder)
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def one_rank(folder, family):
    integration = importlib.import_module("blockscale.integrations.transformers")
    integration.register()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / f"{family}.packed")
    integration.unregister()  # other tests of this process meet transformers as it comes
    return logits(model), logit_bound(model, TOKENS, LOGITS)


@pytest.mark.parametrize("rank", range(2))
def test_logits_of_weights_quantised_on_load(folder, family, one_rank, rank):
    wanted, bound = one_rank
    found = result(folder, "quantised_on_load", rank)[family]
    assert ((found - wanted)[0, -1, LOGITS].abs() <= bound).all()


def test_what_ranks_save_is_the_whole(folder, family):
    found, wanted = bs.load(folder / f"{family}.saved"), bs.load(folder / f"{family}.packed")
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        same = torch.equal if isinstance(value, torch.Tensor) else bs.QTensor.__eq__
        assert same(found[name], value), name
