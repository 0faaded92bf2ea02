"""Small checkpoints on disk, shaped like real models."""

import json

import torch
from safetensors.torch import save_file


def llama(layers=2, hidden=64, dtype=torch.bfloat16):
    """The tensors of a Llama, by name."""
    tensors = {"model.embed_tokens.weight": torch.randn(32, hidden)}
    for i in range(layers):
        layer = f"model.layers.{i}"
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (hidden // 2, hidden),
            "self_attn.v_proj": (hidden // 2, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (96, hidden),
            "mlp.up_proj": (96, hidden),
            "mlp.down_proj": (hidden, 96),
        }.items():
            tensors[f"{layer}.{name}.weight"] = torch.randn(shape) * (1 + len(tensors))
        tensors[f"{layer}.input_layernorm.weight"] = torch.ones(hidden)
    tensors["lm_head.weight"] = torch.randn(32, hidden)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def write_model(folder, tensors, shards=1, **config):
    """As transformers saves it: shards, index, config, and files that are not weights."""
    folder.mkdir(parents=True)
    names = list(tensors)
    files = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name].contiguous() for name in names[shard::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "generation_config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"not to be copied")
    return folder


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
