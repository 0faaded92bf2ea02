"""What the library uses of torch's private API, found here and nowhere else.

Torch may rename any of these in any release. Nothing is asked for at a call or by name elsewhere,
and everything has a way without it that is slower and right:

    device, stream      torch.cuda has both, at a microsecond more for each launch
    questions           where one cannot be asked, every call goes through torch's dispatcher, which
                        asks it anyway
    versions            where changes in place are not counted, no weight counts as unchanged
    transforms          torch.func refuses to take gradients of products
    below autograd      torch's own kernel of autograd costs four times as much at every call
    skip tracing        torch.compiler.disable costs a microsecond at every call
    op call             the dispatcher copies an op's arguments to C++ and back, at every call
    sleep               timings of single launches include some of the host's time
    scaled_mm           torch.nn.functional has it too, and makes its output: one more copy. Where
                        there is neither, the kernel that is made of it refuses
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

BelowAutograd = tuple[Callable[[], Any], Any]  # a guard, and the dispatcher's keys behind it
Question = tuple[Callable[..., object], tuple[object, ...], object]  # callable, arguments, answer


def find_current_device() -> Callable[[], int]:
    """The index of the GPU that this thread uses."""
    found: Callable[[], int] | None = getattr(torch._C, "_cuda_getDevice", None)
    return found or torch.cuda.current_device


def find_raw_stream() -> Callable[[int], int]:
    """The driver's handle of the current stream of a GPU."""
    found: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return found or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))


def find_sleep() -> Callable[[int], object]:
    """Keeps a GPU busy for so many cycles."""
    found: Callable[[int], object] | None = getattr(torch.cuda, "_sleep", None)
    return found or (lambda cycles: None)


def find_questions() -> tuple[Question, ...] | None:
    """Who might want to see a call as an op: traces, modes, transforms, forward gradients. Answers
    are singletons. None where one of these cannot be asked."""
    transforms = getattr(torch._C, "_functorch", None)
    ahead = getattr(getattr(torch._C, "DispatchKey", None), "PreDispatch", None)
    asked: list[tuple[Any, tuple[object, ...], object]] = [
        (getattr(torch._C, "_is_tracing", None) or _public_is_tracing(), (), False),
        (getattr(torch._C, "_len_torch_dispatch_stack", None), (), 0),
        (getattr(torch._C, "_len_torch_function_stack", None), (), 0),
        (getattr(transforms, "peek_interpreter_stack", None), (), None),
        # Modes of a trace ahead of autograd stand on a stack of their own.
        (getattr(torch._C, "_dispatch_tls_is_dispatch_key_included", None), (ahead,), False),
    ]
    unknown = ahead is None or any(ask is None for ask, _, _ in asked)
    if unknown or not hasattr(forward_ad, "_current_level"):
        return None
    return (*asked, (attrgetter("_current_level"), (forward_ad,), -1))


def _public_is_tracing() -> Callable[[], bool]:
    found: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]  # documented
    return found


def find_below_autograd() -> BelowAutograd | None:
    """What a kernel of autograd dispatches a call further with."""
    guard = getattr(torch._C, "_AutoDispatchBelowAutograd", None)
    keys = getattr(torch._C, "_after_autograd_keyset", None)
    return None if guard is None or keys is None else (guard, keys)


def find_skip_tracing() -> Callable[[CodeType], None] | None:
    """Marks code that torch.compile runs as it is, with all that it calls."""
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    mark = getattr(frames, "set_code_exec_strategy", None)
    strategy = getattr(frames, "_FrameExecStrategy", None)
    action = getattr(getattr(frames, "_FrameAction", None), "SKIP", None)
    if mark is None or strategy is None or action is None:
        return None
    skip = strategy(action, action)
    return lambda code: mark(code, skip)


def replace_op_call(op: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Calls of `op` go to what is made of torch's own call of it. Ops are hashed by what they call,
    so right after its definition."""
    if hasattr(op, "_op"):
        op._op = make(op._op)


def find_forward_level() -> Callable[[], int]:
    """-1 where no tensor carries gradients forwards; 0, and so never, where torch does not say."""
    if hasattr(forward_ad, "_current_level"):
        return partial(attrgetter("_current_level"), forward_ad)
    return lambda: 0


def find_transforms() -> tuple[Callable[[], bool], Callable[[], Any]]:
    """Whether torch.func.grad, or another transform in reverse mode, is about a call; and a context
    without transforms, where tensors are made that outlive them. Never, and none, where torch does
    not have both."""
    transforms = getattr(torch._C, "_functorch", None)
    levels = getattr(transforms, "get_interpreter_stack", None)
    grad = getattr(getattr(transforms, "TransformType", None), "Grad", None)
    modules = getattr(getattr(torch, "_functorch", None), "pyfunctorch", None)
    outside = getattr(modules, "temporarily_clear_interpreter_stack", None)
    if levels is None or grad is None or outside is None:
        return lambda: False, nullcontext
    return lambda: any(level.key() == grad for level in levels() or ()), outside


def counts_versions() -> bool:
    """Whether torch counts the changes of a tensor in place."""
    return hasattr(torch.Tensor, "_version")


ScaledMm = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], object]


def find_scaled_mm() -> ScaledMm | None:
    """a [m, k] @ b [k, n], float4 or float8, with blocked scales of each: written to the last."""
    private: Callable[..., Tensor] | None = getattr(torch, "_scaled_mm", None)
    public: Callable[..., Tensor] | None = getattr(torch.nn.functional, "scaled_mm", None)

    def write(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out: Tensor) -> None:
        # Scales of 32 for float4 came with the public function, which alone takes them.
        is_new = a.dtype == torch.float4_e2m1fn_x2 and scale_a.dtype == torch.float8_e8m0fnu
        if private is not None and not is_new:
            private(a, b, scale_a, scale_b, out_dtype=out.dtype, out=out)
        elif public is not None:
            out.copy_(_public_scaled_mm(public, a, b, scale_a, scale_b, out.dtype))
        else:
            raise NotImplementedError(f"torch {torch.__version__} multiplies no MXFP4")

    return None if private is None and public is None else write


def _public_scaled_mm(
    multiply: Callable[..., Tensor],
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    kinds, swizzles = torch.nn.functional.ScalingType, torch.nn.functional.SwizzleType
    by_16 = scale_a.dtype == torch.float8_e4m3fn
    kind, swizzle = kinds.BlockWise1x16 if by_16 else kinds.BlockWise1x32, swizzles.SWIZZLE_32_4_4
    return multiply(a, b, scale_a, kind, scale_b, kind, swizzle, swizzle, output_dtype=dtype)


scaled_mm = find_scaled_mm()
current_device, raw_stream, sleep = find_current_device(), find_raw_stream(), find_sleep()
below_autograd, skip_tracing = find_below_autograd(), find_skip_tracing()
forward_level = find_forward_level()
transforms_take_gradients, outside_transforms = find_transforms()
