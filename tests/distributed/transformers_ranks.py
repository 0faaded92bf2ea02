"""What two ranks do in test_tensor_parallel.py: run with (FOLDER, RANK)."""

import importlib
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from distributed.ranks import act_as_rank

FORMATS = {"Llama": "nvfp4", "Qwen3Moe": "kbit4"}
PACKED = {**FORMATS, "GptOss": "mxfp4"}
TOKENS = torch.arange(12)[None] * 7 % 128


STORED_EXPERTS = [
    ("Qwen3Moe", "by default"),
    ("Qwen3Moe", "exchanged"),
    ("Qwen3Moe", "summed"),
    ("Qwen3Moe", "left aside"),
    ("Qwen3Moe.apart", "by default"),
    ("GptOss", "exchanged"),
    ("GptOss", "summed"),
    ("GptOss", "cut"),
    ("GptOss.fused", "by default"),
    ("GptOss.fused", "cut"),
]
LOADED_EXPERTS = [
    ("Qwen3Moe", "by default"),
    ("Qwen3Moe", "summed"),
    ("GptOss", "exchanged"),
    ("GptOss", "summed"),
    ("GptOss", "cut"),
]

# GPT-OSS has no plan of its own for tensor parallelism. Its experts are [e, k, n] with gates and
# ups in turn, and have biases, of which ranks have all.
EXPERTS = "model.layers.*.mlp.experts"
GPT_OSS = {
    f"{EXPERTS}.gate_up_proj": "rowwise",
    f"{EXPERTS}.down_proj": "colwise",
    EXPERTS: "moe_tp_experts",
}


def expert_plan(family, way):
    """How ranks work with experts; two versions of transformers spell it in two ways.

    Each rank has a part of every expert ("cut"). Or it has whole experts, and either tokens are
    "exchanged" or masked outputs "summed"; "by default" transformers chooses. A plan that says
    neither is "left aside" by it.
    """
    from transformers.distributed import DistributedConfig

    if way == "cut":
        return {"tp_plan": GPT_OSS}
    if way == "left aside":
        return {"ep_size": 2, "ep_plan": {EXPERTS: "grouped_gemm"}}
    if hasattr(DistributedConfig, "ep_implementation"):
        names = {"exchanged": "all_to_all", "summed": "all_reduce", "by default": "auto"}
        return {"ep_size": 2, "ep_implementation": names[way]}
    router = {"Qwen3Moe": "gate", "GptOss": "router"}[family]
    masked = {f"model.layers.*.mlp.{router}": "ep_router", EXPERTS: "moe_tp_experts"}
    return {"ep_size": 2, **({"ep_plan": masked} if way == "summed" else {})}


def load(folder, name, plan=None, **arguments):
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    config = DistributedConfig(tp_size=2, **plan or {"tp_plan": "auto"})
    arguments = {"distributed_config": config, **arguments}
    return AutoModelForCausalLM.from_pretrained(folder / name, **arguments)


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits.contiguous()


def quantised_on_load(folder):
    from blockscale.integrations.transformers import BlockscaleConfig

    found = {}
    for family, format in FORMATS.items():
        model = load(folder, family, quantization_config=BlockscaleConfig(format))
        found[family] = logits(model)
        model.save_pretrained(folder / f"{family}.saved")
    return found


def stored_packed(folder):
    """With the bytes that this rank read of packed weights, and held of them."""
    from blockscale import nn
    from blockscale.checkpoint.files import Files

    found = {}
    for family in (*FORMATS, "Qwen3Moe.apart"):
        name = f"{family}.packed"
        with counting(Files) as read:
            model = load(folder, name)
        kinds = (nn.Linear, nn.Experts)
        packed = [q for m in model.modules() if isinstance(m, kinds) for q in m.qtensors().values()]
        found[family] = logits(model)
        found[f"{family}.read"] = torch.tensor(sum(read))
        found[f"{family}.held"] = torch.tensor(sum(q.nbytes for q in packed))
        model.save_pretrained(folder / f"{family}.saved_again")
    return found


@contextmanager
def counting(files):
    """The bytes of all that is read of checkpoints."""
    originals, read = {name: getattr(files, name) for name in ("part", "tensor")}, []
    for name, original in originals.items():

        def counted(self, *args, original=original, **named):
            tensor = original(self, *args, **named)
            read.append(tensor.nbytes)
            return tensor

        setattr(files, name, counted)
    yield read
    for name, original in originals.items():
        setattr(files, name, original)


class Exchanges(TorchDispatchMode):
    """How often ranks have sent each other rows."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "alltoall" in func.name().replace("_", "")
        return func(*args, **kwargs or {})


def experts_by_plan(folder):
    """From stored weights, fused, apart and one by one, and on load; with and without biases."""
    from blockscale.integrations.transformers import BlockscaleConfig

    found = {}
    for name, way in STORED_EXPERTS:
        model = load(folder, f"{name}.packed", expert_plan(name.partition(".")[0], way))
        with Exchanges() as exchanges:
            found[f"{name}, {way}"] = logits(model)
        found[f"{name}, {way}, exchanges"] = torch.tensor(exchanges.count)
    for family, way in LOADED_EXPERTS:
        config = BlockscaleConfig(PACKED[family])
        model = load(folder, family, expert_plan(family, way), quantization_config=config)
        found[f"{family}, {way}, on load"] = logits(model)
        model.save_pretrained(folder / f"{family}, {way}, on load")
    return found


def generated(folder):
    model = load(folder, "Llama.packed")
    again = load(folder, "Llama.packed")
    again.load_state_dict(model.state_dict())
    tokens = model.generate(TOKENS, max_new_tokens=4, do_sample=False)
    return {"tokens": tokens, "logits": logits(model), "again": logits(again)}


def fully_sharded(folder):
    """FSDP of transformers, and torch's own, around layers whose packed weights are frozen."""
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    config = DistributedConfig(fsdp_size=2)
    theirs = AutoModelForCausalLM.from_pretrained(
        folder / "Llama.packed", distributed_config=config
    )
    theirs.save_pretrained(folder / "Llama.saved_by_fsdp")
    mine = AutoModelForCausalLM.from_pretrained(folder / "Llama.packed")
    for layer in mine.model.layers:
        fully_shard(layer)
    fully_shard(mine)
    norm = mine.model.layers[0].input_layernorm.weight
    mine(TOKENS).logits.square().sum().backward()
    return {
        "transformers": logits(theirs),
        "torch": logits(mine),
        "gradient": norm.grad.full_tensor(),
    }


def refused(folder):
    """What is said of a cut inside a block, of FSDP while quantising, of saving a part, and so on.

    Two versions of transformers spell Mega MoE in two ways.
    """
    from transformers.distributed import DistributedConfig

    import blockscale as bs
    from blockscale.integrations.transformers import BlockscaleConfig

    blocks_of_64 = BlockscaleConfig("bnb_nf4", scale="absmax")
    nvfp4, mxfp4 = ({"quantization_config": BlockscaleConfig(f)} for f in ("nvfp4", "mxfp4"))
    fsdp = {"distributed_config": DistributedConfig(fsdp_size=2)}
    alone = {"tp_plan": {name: style for name, style in GPT_OSS.items() if name != EXPERTS}}
    mega = {"ep_size": 2, "ep_plan": {EXPERTS: "megamoe_experts"}}
    if hasattr(DistributedConfig, "ep_implementation"):
        mega = {"ep_size": 2, "ep_implementation": "deepgemm_megamoe"}
    attempts = {
        "block": lambda: load(folder, "Llama", quantization_config=blocks_of_64),
        "fsdp": lambda: load(folder, "Llama", **nvfp4, **fsdp),
        "save": lambda: bs.save(load(folder, "Llama.packed"), folder / "part"),
        "style": lambda: load(folder, "GptOss.packed", alone),
        "style, on load": lambda: load(folder, "GptOss", alone, **mxfp4),
        "mega": lambda: load(folder, "Qwen3Moe.packed", mega),
        "mega, on load": lambda: load(folder, "Qwen3Moe", mega, **mxfp4),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except ValueError as error:
            said[name] = torch.tensor(list(str(error).encode()), dtype=torch.uint8)
    return said


def main(folder, rank):
    os.environ.update(RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank)
    functions = [
        quantised_on_load,
        stored_packed,
        experts_by_plan,
        generated,
        fully_sharded,
        refused,
    ]
    importlib.import_module("blockscale.integrations.transformers")
    act_as_rank(Path(folder), int(rank), functions)


if __name__ == "__main__":
    main(*sys.argv[1:])
