"""Packed layers under the tensor and expert parallelism of transformers, on two gloo ranks."""

import importlib
from functools import cache

import pytest
import torch

import blockscale as bs
from blockscale.checkpoint import Checkpoint, Settings, plan_conversion, run_plan
from distributed.logit_bound import logit_bound
from distributed.ranks import result, run_two_ranks
from distributed.transformers_ranks import (
    FORMATS,
    LOADED_EXPERTS,
    PACKED,
    STORED_EXPERTS,
    TOKENS,
    logits,
)

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
FAMILIES = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Qwen3Moe": MOE,
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
}
LOGITS = range(0, 128, 16)
NO_STYLE = "layers.0.mlp.experts: the plan cuts its parameters and has no style for the layer"
MEGA = "layers.0.mlp.experts: DeepGEMM's Mega MoE multiplies by its own weights"


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
        bs.quantize_(model, PACKED[family], importance=None)
        model.save_pretrained(folder / f"{family}.packed")
    apart = plan_conversion(folder / "Qwen3Moe", Settings(bs.MXFP4))  # experts one by one
    run_plan(apart, folder / "Qwen3Moe.apart.packed", lambda *_: None)
    fused = plan_conversion(folder / "GptOss", Settings(bs.MXFP4))  # in the dialect of GPT-OSS
    run_plan(fused, folder / "GptOss.fused.packed", lambda *_: None)
    run_two_ranks("transformers_ranks.py", folder)
    return folder


@pytest.fixture(scope="module")
def one_rank(folder):
    """Logits of a packed model on one rank, and how far those of two ranks may be from them."""
    integration = importlib.import_module("blockscale.integrations.transformers")

    @cache
    def logits_and_bound(name):
        integration.register()
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / f"{name}.packed")
        integration.unregister()  # other tests of this process meet transformers as it comes
        return logits(model), logit_bound(model, TOKENS, LOGITS)

    return logits_and_bound


def check_logits(found, wanted, bound):
    assert ((found - wanted)[0, -1, LOGITS].abs() <= bound).all()


def check_same_tensors(found, wanted):
    found, wanted = bs.load(found), bs.load(wanted)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        same = torch.equal if isinstance(value, torch.Tensor) else bs.QTensor.__eq__
        assert same(found[name], value), name


ranks = pytest.mark.parametrize("rank", range(2))
families = pytest.mark.parametrize("family", FORMATS)
with_experts_apart = pytest.mark.parametrize("family", [*FORMATS, "Qwen3Moe.apart"])


@families
@ranks
def test_quantised_on_load(folder, one_rank, family, rank):
    check_logits(result(folder, "quantised_on_load", rank)[family], *one_rank(family))


@families
def test_what_ranks_quantise_and_save_is_what_one_rank_makes(folder, family):
    check_same_tensors(folder / f"{family}.saved", folder / f"{family}.packed")


@with_experts_apart
@ranks
def test_stored_weights(folder, one_rank, family, rank):
    check_logits(result(folder, "stored_packed", rank)[family], *one_rank(family))


@with_experts_apart
@ranks
def test_a_rank_reads_and_holds_its_part_of_stored_weights(folder, family, rank):
    checkpoint = Checkpoint(folder / f"{family}.packed")
    packed = [each for each in checkpoint.tensors.values() if each.format is not None]
    # Of tensor scales, codebooks, labels and biases there is no part.
    whole = sum(entry.nbytes for each in packed for entry in each.parts.values())
    small = [entry for entry in checkpoint.files.entries.values() if entry.nbytes <= 1024]
    most = whole // 2 + sum(entry.nbytes for entry in small)
    found = result(folder, "stored_packed", rank)
    assert 0 < found[f"{family}.read"] <= most
    assert 0 < found[f"{family}.held"] <= most


@families
def test_stored_weights_are_saved_whole(folder, family):
    check_same_tensors(folder / f"{family}.saved_again", folder / f"{family}.packed")


@pytest.mark.parametrize(("name", "way"), STORED_EXPERTS)
@ranks
def test_stored_experts_by_plan(folder, one_rank, name, way, rank):
    found = result(folder, "experts_by_plan", rank)[f"{name}, {way}"]
    check_logits(found, *one_rank(name))


# The default differs between versions of transformers.
@pytest.mark.parametrize(("name", "way"), [e for e in STORED_EXPERTS if e[1] != "by default"])
def test_tokens_are_exchanged_where_the_plan_says_so(folder, name, way):
    count = result(folder, "experts_by_plan")[f"{name}, {way}, exchanges"]
    assert (count > 0) == (way == "exchanged")


@pytest.mark.parametrize(("family", "way"), LOADED_EXPERTS)
@ranks
def test_experts_quantised_on_load_by_plan(folder, one_rank, family, way, rank):
    found = result(folder, "experts_by_plan", rank)[f"{family}, {way}, on load"]
    check_logits(found, *one_rank(family))


@pytest.mark.parametrize(("family", "way"), LOADED_EXPERTS)
def test_experts_of_all_ranks_are_saved(folder, family, way):
    check_same_tensors(folder / f"{family}, {way}, on load", folder / f"{family}.packed")


@ranks
def test_generation_and_state_dicts(folder, rank):
    found = result(folder, "generated", rank)
    assert torch.equal(found["tokens"], result(folder, "generated", 1 - rank)["tokens"])
    assert found["tokens"].shape == (1, TOKENS.shape[1] + 4)
    assert torch.equal(found["again"], found["logits"])


@pytest.mark.parametrize("way", ["transformers", "torch"])
@ranks
def test_fully_sharded_models_have_whole_packed_weights(folder, one_rank, way, rank):
    """Every rank does what one rank does."""
    assert torch.equal(result(folder, "fully_sharded", rank)[way], one_rank("Llama")[0])
    assert result(folder, "fully_sharded", rank)["gradient"].abs().sum() > 0


def test_fully_sharded_models_are_saved_whole(folder):
    check_same_tensors(folder / "Llama.saved_by_fsdp", folder / "Llama.packed")


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        ("block", "o_proj: k=64 over 2 ranks is 32 columns each, which cuts the blocks of bnb_nf4"),
        ("fsdp", "For FSDP, save the packed model first and load that"),
        ("save", "let every rank call model.save_pretrained"),
        ("style", NO_STYLE),
        ("style, on load", NO_STYLE),
        ("mega", MEGA),
        ("mega, on load", MEGA),
    ],
)
def test_what_would_be_wrong_is_refused(folder, attempt, message):
    said = result(folder, "refused")[attempt]
    assert message in bytes(said.tolist()).decode()
