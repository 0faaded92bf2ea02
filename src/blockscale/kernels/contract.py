"""What a kernel is: a module with a name and three functions.

    refuses(problem) -> str | None      why not: illegal here, or known slower, with the number
    configs(problem) -> list[Config]    legal ones, best guess first; [0] runs untuned
    launch(problem, config, *tensors)   plain tensors only, output last

Configs are frozen dataclasses of numbers and strings, so that tuning can store and compare them. A
kernel may say what a CUDA graph cannot hold:

    is_capturable(problem) -> bool      optional: False where the host must read something back

and tell `explain` why its first config is the first:

    predicted(problem) -> str           optional: how long that will take, and the next one

A verb's kernels are a tuple, tried in order; the last is `reference`, which refuses nothing. What
`launch` takes beyond problem and config is written in the `__init__` of the kernel's folder.

A kernel that is compiled at run time also offers

    builds(problem, config=None)        -> list[Build]: what `launch` will load, so that it can be
                                        compiled before; by default with the first config
    every_build(target) -> list[Build]  what continuous integration compiles for a target
    instructions(build)                 optional: what its machine code must have, as in ("HMMA",)

and one whose launches should cost the host little

    Launch(problem, config, weights, frozen)
                                        all that does not change between calls on the same weights;
                                        called with (x, biases, group_sizes, out)

    its ALIGNED                         bytes at whose multiples codes and scales must start
    its settled_version, replay(bias)   optional: see `ReplayLaunch`

`frozen` is a promise of whoever owns the weights: only torch's own operations write to them, and
these are counted in `Tensor._version`. Without it a launch must assume that the kernel ahead in the
stream writes the weights: it waits for that kernel before it reads them, and no kernel may depend
on what a codebook holds.

A config with a true `quantizes_x` takes plain rows where x of the problem is quantised, and rounds
them itself, to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from blockscale.problem import Problem


class ReplayLaunch(NamedTuple):
    """What launches share while their weights are of one version: csrc/replay adds the
    tensors that come and go, and makes them. Launches that share less have no such thing."""

    arguments: bytes  # the kernel's
    x_at: int  # where in these the addresses of tensors and the stride of x are
    x_stride_at: int
    out_at: int
    bias_at: int
    up_bias_at: int
    group_sizes_at: int
    x_map: Callable[[int, int], bytes] | None  # by address and stride; comes first in `arguments`
    launch: int  # see runtime.cuda.functions.Prepared
    function: int
    config: bytes
    attributes: bytes
    counted: tuple[Tensor, ...]  # weights that were promised not to change; their versions' sum:
    version: int
    device_index: int


class Parts(NamedTuple):
    """The tensors of one quantised operand, with a leading group dimension."""

    codes: Tensor
    scale: Tensor
    tensor_scale: Tensor | None
    codebook: Tensor | None

    def placed(self, aligned: int) -> Parts:
        """Matrices or rows of a larger tensor are copied: for code that takes all there is. So is
        what does not start where it must; see `why_copied`."""
        return Parts(*(_placed(part, each) for part, each in self._alignments(aligned)))

    def why_copied(self, aligned: int) -> str | None:
        """None where `placed` copies nothing. Codes and scales must start at a multiple of
        `aligned` bytes, numbers at one of their own size."""
        for name, (part, each) in zip(self._fields, self._alignments(aligned), strict=True):
            if part is not None and not part.is_contiguous():
                return f"{name} is a view of something larger, with gaps"
            if part is not None and part.data_ptr() % each:
                return f"{name} starts at an address that is no multiple of {each}"
        return None

    def _alignments(self, aligned: int) -> tuple[tuple[Tensor | None, int], ...]:
        codes, scale, tensor_scale, codebook = self
        return (codes, aligned), (scale, aligned), (tensor_scale, 4), (codebook, 4)


def _placed(part: Tensor | None, aligned: int) -> Any:
    if part is None or (part.is_contiguous() and part.data_ptr() % aligned == 0):
        return part
    return part.clone(memory_format=torch.contiguous_format)


class Kernel(Protocol):
    NAME: str

    def refuses(self, problem: Problem) -> str | None: ...
    def configs(self, problem: Problem) -> Sequence[Any]: ...
    def launch(self, problem: Problem, config: Any, *tensors: Any) -> None: ...
