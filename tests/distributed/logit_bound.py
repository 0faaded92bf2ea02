"""How far logits may move where ranks add up parts of sums that one rank adds in one go.

To first order a logit moves by its gradient with respect to the result of each layer, times the
distance of that result. A sum of k products, in any order, is within (k + 8) roundings of its
terms' magnitudes; two of them are apart by twice that.
"""

import torch
from torch import nn

import blockscale as bs
from bounds import roundings


def logit_bound(model, tokens, logits):
    """Of some logits of the last token: [len(logits)]."""
    moved = {}
    hooks = [
        module.register_forward_hook(lambda m, x, y: moved.update({m: (y, 2 * _one_sum(m, x))}))
        for module in model.modules()
        if isinstance(module, nn.Linear | bs.nn.Linear | bs.nn.Experts)
    ]
    model.get_input_embeddings().weight.requires_grad_()
    found = model(tokens).logits[0, -1, logits]
    for hook in hooks:
        hook.remove()
    results = [y for y, _ in moved.values()]
    bounds = []
    for logit in found:
        slopes = torch.autograd.grad(logit, results, retain_graph=True)
        pairs = zip(slopes, moved.values(), strict=True)
        bounds.append(sum((slope.abs() * b).sum() for slope, (_, b) in pairs))
    return 2 * torch.stack(bounds).detach()  # as much again for what is not of first order


def _one_sum(module, inputs):
    with torch.no_grad():
        x = inputs[0].abs()
        if isinstance(module, bs.nn.Experts):
            return _experts_sum(module, *inputs)
        weight = module.weight if isinstance(module, nn.Linear) else module.dequantize()
        bias = 0 if module.bias is None else module.bias.abs()
        return roundings(x.shape[-1] + 8, x @ weight.abs().T + bias)


def _experts_sum(module, x, index, weights):
    gate, up, down = (each.dequantize() for each in (module.gate, module.up, module.down))
    total = torch.zeros_like(x)
    for i in range(index.shape[-1]):
        at = index[:, i]
        halves = [torch.einsum("th,tih->ti", x, each[at]) for each in (gate, up)]
        biases = (module.gate_bias, module.up_bias)
        halves = [a if b is None else a + b[at] for a, b in zip(halves, biases, strict=True)]
        inner = module.activation(*halves)
        total += torch.einsum("ti,thi->th", inner.abs(), down[at].abs()) * weights[:, i, None]
    return roundings(down.shape[-1] + 8, total)
