"""What two ranks do in test_tensor_parallel.py: run with (FOLDER, RANK)."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import torch

from distributed.ranks import act_as_rank

FORMATS = {"Llama": "nvfp4", "Qwen3Moe": "kbit4"}
PACKED = {**FORMATS, "GptOss": "mxfp4"}
TOKENS = torch.arange(12)[None] * 7 % 128


def load(folder, name, ep=False, **arguments):
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    config = DistributedConfig(tp_size=2, **({"ep_size": 2} if ep else {"tp_plan": "auto"}))
    return AutoModelForCausalLM.from_pretrained(
        folder / name, distributed_config=config, **arguments
    )


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


def experts_apart(folder):
    """Expert parallelism: from stored weights and on load, with biases, summed or dispatched."""
    from blockscale.integrations.transformers import BlockscaleConfig

    found = {}
    for family in ("Qwen3Moe", "Qwen3Moe.apart", "GptOss"):
        model = load(folder, f"{family}.packed", ep=True)
        found[f"{family}, stored"] = logits(model)
    for family, format in (("Qwen3Moe", "kbit4"), ("GptOss", "mxfp4")):
        model = load(folder, family, ep=True, quantization_config=BlockscaleConfig(format))
        found[f"{family}, on load"] = logits(model)
        model.save_pretrained(folder / f"{family}.saved_by_experts")
    return found


def main(folder, rank):
    os.environ.update(RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank)
    act_as_rank(Path(folder), int(rank), [quantised_on_load, stored_packed, experts_apart])


if __name__ == "__main__":
    main(*sys.argv[1:])
