"""A model with the names of a language model's layers, to quantise."""

import torch

import blockscale as bs


class Block(torch.nn.Module):
    """Names as in a language model."""

    def __init__(self):
        super().__init__()
        self.up_proj = torch.nn.Linear(64, 96)
        self.down_proj = torch.nn.Linear(96, 64, bias=False)
        self.gate = torch.nn.Linear(64, 4)
        self.norm = torch.nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(x + self.down_proj(self.up_proj(x).relu()) * self.gate(x).mean())


class Model(torch.nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.embed = torch.nn.Embedding(100, 64)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.lm_head = torch.nn.Linear(64, 100, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(x)


def formats_of(model):
    return {
        name: module.weight.format
        for name, module in model.named_modules()
        if isinstance(module, bs.nn.Linear)
    }


UPS = ["blocks.0.up_proj", "blocks.1.up_proj"]

DOWNS = ["blocks.0.down_proj", "blocks.1.down_proj"]
