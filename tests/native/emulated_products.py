"""Products by the kernels' own sources, run by the emulator on lossless inputs."""

import torch

import blockscale as bs
from blockscale.kernels.cuda.layout import fragments
from blockscale.ops.operand import as_groups
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu


def lossless(format, *shape):
    """Weights whose sums with small integers float32 holds: scales are powers of two.

    Canonical, and as kernels read them.
    """
    q = bs.quantize(torch.randn(*shape), format)
    q.scale.fill_(format.scale.values.index(1.0))
    q.scale[..., ::3] = format.scale.values.index(2.0)
    if q.tensor_scale is not None:
        q.tensor_scale.fill_(0.25)
    return q, q.pack(fragments(format))


def scales_far_apart(n, k, format=bs.MXFP4):
    """E8M0, from the least to some that leave no room to lift weights by, and a NaN in block 3 of
    row 0. Most groups of 64 rows have large ones, and few of 16."""
    q = bs.quantize(torch.randn(n, k), format)
    q.scale.random_(0, 133)  # up to 2^5, the largest that leaves room
    q.scale[torch.rand(q.scale.shape) < 0.01] = 133
    q.scale[:, 9] = 240
    q.scale[0, 3] = 255
    return q, q.pack(fragments(bs.MXFP4))


def numbers(m, k):
    return torch.randint(-4, 5, (m, k)).bfloat16()


def problem_of(format, m, n, k, out="float32", device=gpu("h200"), **facts):  # noqa: B008
    w = str(Kind(format, fragments(format)))
    facts = {"verb": "matmul", "x": "bfloat16", **facts}
    return Problem(m=m, n=n, k=k, out=out, device=device, w=w, **facts)


def run(kernel, problem, config, weights, x, biases=(None,), sizes=None):
    """Into memory that holds NaN: what is not written is seen."""
    out = torch.full((problem.rows, problem.n), torch.nan, dtype=problem.out_dtype)
    parts = tuple(as_groups(w.operand) for w in weights)
    kernel.bind(problem, config, parts, frozen=True)(x, biases, sizes, out)
    return out
