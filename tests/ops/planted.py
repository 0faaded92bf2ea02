"""Kernels for tests of proofs: the definition, with something wrong with the answer."""

from dataclasses import dataclass, replace

import torch

from blockscale.kernels import KERNELS, Config, FunctionLaunch, Parts
from blockscale.runtime import gpu

# Its memory is the CPU's.
FAKE = replace(gpu("b200"), name="a GPU that is not there", live=True)
_REFERENCES = {verb: kernels[-1] for verb, kernels in KERNELS.items()}


@dataclass(frozen=True)
class Only(Config):
    number: int = 0


class Planted:
    """damage(problem, weights, tensors, run): `run` is the definition's launch."""

    def __init__(self, name, damage=None, takes=lambda problem: True):
        self.NAME, self.damage, self.takes = name, damage, takes
        self.launches = 0

    def reads(self, format, device):
        return None

    def refuses(self, problem):
        return None if self.takes(problem) else "not asked for"

    def configs(self, problem):
        return [Only(), Only(1)]

    def bind(self, problem, config, weights=(), frozen=False):
        reference = _REFERENCES[problem.verb]

        def run(weights=weights, tensors=(), problem=problem):
            return reference.bind(problem, reference.configs(problem)[0], weights)(*tensors)

        def launch(*tensors):
            self.launches += 1
            if self.damage is None:
                return run(weights, tensors)
            return self.damage(problem, weights, tensors, run)

        return FunctionLaunch(launch)


def last_value(problem, weights, tensors, run):
    """One value of the result, in the last place that bfloat16 has."""
    run(weights, tensors)
    out = tensors[-1].view(-1)
    out[-1] = out[-1] * (1 + 2.0**-6) + 2.0**-6


def unwritten_row(problem, weights, tensors, run):
    before = tensors[-1][-1].clone()
    run(weights, tensors)
    tensors[-1][-1] = before


def no_tensor_scale(problem, weights, tensors, run):
    ones = tuple(part._replace(tensor_scale=torch.ones_like(part.tensor_scale)) for part in weights)
    run(ones, tensors)


def neighbours_scales(problem, weights, tensors, run):
    """Of the row before."""
    run(tuple(part._replace(scale=part.scale.roll(1, -2)) for part in weights), tensors)


def swapped_nibbles(problem, weights, tensors, run):
    def swap(codes):
        return codes << 4 | codes >> 4

    run(tuple(part._replace(codes=swap(part.codes)) for part in weights), tensors)


def without_last_block(problem, weights, tensors, run):
    x, *rest = tensors
    cut = x.clone()
    cut[:, -problem.w_kind.format.block :] = 0
    run(weights, (cut, *rest))


def without_bias(problem, weights, tensors, run):
    x, biases, *rest = tensors
    run(weights, (x, tuple(None for _ in biases), *rest))


def other_experts(problem, weights, tensors, run):
    def turned(part):
        fields = (None if each is None else each.roll(1, 0) for each in part[:3])
        return Parts(*fields, part.codebook)

    run(tuple(map(turned, weights)), tensors)


def swapped_branches(problem, weights, tensors, run):
    x, biases, *rest = tensors
    run(weights[::-1], (x, biases[::-1], *rest))


def narrow_sums(problem, weights, tensors, run):
    """Rounded to bfloat16 after every 64 columns."""
    x, biases, sizes, out = tensors
    total = torch.zeros_like(out, dtype=torch.float32)
    for first in range(0, problem.k, 64):
        part = torch.zeros_like(x)
        part[:, first : first + 64] = x[:, first : first + 64]
        wide = torch.empty_like(out, dtype=torch.float32)
        run(weights, (part, tuple(None for _ in biases), sizes, wide), replace(problem, bias=False))
        total = (total + wide).bfloat16().float()
    out.copy_(total)


def odd_rows_only(problem, weights, tensors, run):
    """Right where the rows fill whole tiles of 8."""
    run(weights, tensors)
    if problem.m % 8:
        tensors[-1][-(problem.m % 8) :] = 0


def fails(problem, weights, tensors, run):
    raise RuntimeError("cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE\nand more")


def greedy(problem, weights, tensors, run):
    raise torch.OutOfMemoryError("tried to allocate 2 GiB\nand more")
