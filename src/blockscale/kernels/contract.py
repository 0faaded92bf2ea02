"""What a kernel is: a module with a name and four functions.

    reads(format, device) -> Layout | None      what `prepare` packs weights to for it; None where
                                                it reads them as files hold them, or not at all
    refuses(problem) -> str | None              why not: illegal here, or known slower, with the
                                                number
    configs(problem) -> Sequence[Config]        every legal one, by predicted time; [0] runs untuned
    bind(problem, config, weights, frozen) -> Launch
                                                called with the tensors that change between calls

A verb's kernels are a tuple, tried in order; the last is `reference`, which refuses nothing. Which
tensors are a verb's weights, and what its launches are called with, stands in the `__init__` of its
folder. Nothing else of a kernel is asked for, by any name.

`frozen` is a promise of whoever owns the weights: only torch's own operations write to them, and
these are counted in `Tensor._version`. Without it a launch must assume that the kernel ahead in the
stream writes the weights: it waits for that kernel before it reads them, and no kernel may depend
on what a codebook holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from blockscale.formats import Format
from blockscale.layouts import Layout, TensorMemory
from blockscale.problem import Problem
from blockscale.runtime import Device
from blockscale.runtime.cuda import Build


@dataclass(frozen=True)
class Config:
    """How a kernel is shaped: numbers and strings, which tuning can store and compare."""

    @property
    def quantizes_x(self) -> bool:
        """Whether launches take plain rows where x of the problem is quantised, and round them
        themselves, to the same bits."""
        return False


class Prediction(NamedTuple):
    """How long a launch should take."""

    microseconds: float
    bound_by: str
    measured: str = ""  # where the time was measured and not predicted: what and on what
    basis: str = ""  # what it rests on where nothing of such a machine was measured

    def __str__(self) -> str:
        time = self.microseconds
        told = f"{time:.3g} us" if time < 1000 else f"{time / 1000:.3g} ms"
        reason = self.measured or f"bound by {self.bound_by}"
        return f"{told}, {reason}" + (f" ({self.basis})" if self.basis else "")


class Launch:
    """A problem bound to a config and to weights, if the verb has any. Without weights it can be
    asked, and not called."""

    alignment = 1  # bytes at whose multiples codes and scales of the weights must start

    def __call__(self, *tensors: Any) -> Any:
        raise NotImplementedError

    @property
    def builds(self) -> Sequence[Build]:
        """What is compiled at run time for calls of this kind, so that it can be compiled before:
        first what a call is most likely to load."""
        return ()

    @property
    def is_capturable(self) -> bool:
        """Whether a CUDA graph can hold a call; not where the host must read something back."""
        return True

    @property
    def holds_weights(self) -> bool:
        """Whether the launch keeps weights alive that it was bound to, or copies of them. One that
        has only their addresses in it can be kept by somebody who does not own them."""
        return True

    @property
    def predicted(self) -> Prediction | None:
        """None of kernels that have no model of themselves."""
        return None

    def config_for(self, symmetric: bool) -> Config | None:
        """The config of what runs by a codebook that is known to be symmetric, or by any; None
        where it is the same."""
        return None

    @property
    def tensor_memory(self) -> TensorMemory | None:
        """How a CTA divides TMEM; None of kernels that use none."""
        return None

    @property
    def settled_version(self) -> int | None:
        """Of the weights, once calls have been alike for so long that `replay` pays; else None."""
        return None

    def replay(
        self, biases: tuple[Tensor | None, ...], group_sizes: Tensor | None
    ) -> ReplayLaunch | None:
        """What C code needs to repeat such calls by itself; None where they differ in more than
        the tensors it knows about."""
        return None


class FunctionLaunch(Launch):
    """A launch that finds nothing out beforehand: a function of the tensors."""

    def __init__(
        self,
        run: Callable[..., Any],
        *,
        builds: Callable[[], Sequence[Build]] = tuple,
        is_capturable: bool = True,
    ) -> None:
        self._run, self._builds, self._is_capturable = run, builds, is_capturable

    def __call__(self, *tensors: Any) -> Any:
        return self._run(*tensors)

    @property
    def builds(self) -> Sequence[Build]:
        return self._builds()

    @property
    def is_capturable(self) -> bool:
        return self._is_capturable


class ReplayLaunch(NamedTuple):
    """What launches share while their weights are of one version: csrc/replay adds the
    tensors that come and go, and makes them."""

    arguments: bytes  # the kernel's
    x_at: int  # where in these the addresses of tensors and the stride of x are
    x_stride_at: int
    out_at: int
    bias_at: int
    up_bias_at: int
    group_sizes_at: int
    x_map: Callable[[int, int], bytes] | None  # by address and stride; comes first in `arguments`
    workspace: Callable[[int], bytes] | None  # by stream: what stands there, of memory it shares
    workspace_at: int
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

    def cut(self, groups: slice) -> Parts:
        """Some of the matrices."""
        scale = None if self.tensor_scale is None else self.tensor_scale[groups]
        return Parts(self.codes[groups], self.scale[groups], scale, self.codebook)

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

    def reads(self, format: Format, device: Device) -> Layout | None: ...
    def refuses(self, problem: Problem) -> str | None: ...
    def configs(self, problem: Problem) -> Sequence[Config]: ...
    def bind(
        self, problem: Problem, config: Any, weights: tuple[Parts, ...] = (), frozen: bool = False
    ) -> Launch: ...


def reads_canonical(format: Format, device: Device) -> Layout | None:
    """`reads` of a kernel that wants nothing prepared."""
    return None
