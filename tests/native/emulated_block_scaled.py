"""Both operands quantised, for kernels' own sources that the emulator runs: lossless inputs."""

from dataclasses import replace

import torch

import blockscale as bs
from blockscale.kernels import Parts
from blockscale.ops.operand import as_groups
from blockscale.problem import Problem
from blockscale.runtime import gpu


def small(format, *shape):
    """Integers up to 4 with scales of 1/2, 1 and 2: float32 holds their sums. Canonical."""
    q = bs.quantize(torch.zeros(*shape), format)
    table = format.element.values
    code_of = torch.tensor([table.index(float(value)) for value in range(-4, 5)], dtype=torch.uint8)
    codes = code_of[torch.randint(0, 9, shape)]
    q.codes.copy_(q.layout.pack_codes(codes, format))
    scales = torch.tensor([format.scale.values.index(each) for each in (0.5, 1.0, 2.0)])
    q.scale.copy_(scales[torch.randint(0, 3, q.scale.shape)])
    if q.tensor_scale is not None:
        q.tensor_scale.fill_(0.25)
    return q


def blocked(q):
    """With NaN where blocked scales are padded: no product may read that."""
    packed, ones = q.pack("bits/blocked"), replace(q, scale=torch.ones_like(q.scale))
    packed.scale[ones.pack("bits/blocked").scale == 0] = 0xFF
    return packed


def rows_of(q, rows):
    """x as a kernel takes it: blocked, and one tensor scale for each row."""
    codes, scale, tensor_scale, _ = as_groups(blocked(q).operand)
    if tensor_scale is not None:
        tensor_scale = torch.full((rows,), 0.25)
    return Parts(codes.flatten(0, 1), scale, tensor_scale, None)


def problem_of(device, x, w, m, n, k, sms, out="float32", verb="matmul", rows=False, **facts):
    """rows: scales of x are in rows."""
    placed = "bits/rows" if rows else "bits/blocked"
    kinds = {"x": f"{x.spec}@{placed}", "w": f"{w.spec}@bits/blocked"}
    device = replace(gpu(device), sms=sms)
    return Problem(verb=verb, m=m, n=n, k=k, out=out, device=device, **kinds, **facts)
