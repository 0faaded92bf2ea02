"""What two ranks do in test_tensor_parallel.py: run with (FOLDER, RANK)."""

import os
import sys
from pathlib import Path

import torch

from distributed.ranks import act_as_rank

FORMATS = {"Llama": "nvfp4", "Qwen3Moe": "kbit4"}
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


def main(folder, rank):
    os.environ.update(RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank)
    act_as_rank(Path(folder), int(rank), [quantised_on_load])


if __name__ == "__main__":
    main(*sys.argv[1:])
