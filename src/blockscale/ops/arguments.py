"""How a product crosses `torch.library`: an op's arguments, made from a call and read back.

The dispatcher copies every argument from Python to C++ and back at every call. Half a microsecond
for each, and one for each list, is as much as a small product takes: so there are few, and lists
that a call seldom has are optional. What is neither a tensor nor a number crosses as one string,
which is read once. Leading dimensions are those of the codes. No argument has a default: compiled
programs would give it by name, which takes longer to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.ops.matmul import MatmulCall
from blockscale.ops.operand import Operand
from blockscale.ops.validate import check_k
from blockscale.problem import dtype_named

# w: the tensors of the weight, or of gate and then of up. x_rest: those of a quantised x but for
# its codes, which are `x`.
SCHEMA = (
    "(Tensor x, Tensor[] w, str text, SymInt n, SymInt k, Tensor? bias, Tensor? up_bias,"
    " Tensor? group_sizes, Tensor? x_tensor_scale, Tensor[]? x_rest, float[]? x_codebook) -> Tensor"
)
X, BIAS = 0, 5  # places in it; the bias of up follows


class CallText(NamedTuple):
    """What a call says in words."""

    x_kind: str
    w_kind: str
    activation: str
    x_format: str
    out_dtype: torch.dtype


@lru_cache(maxsize=1024)
def parse_text(text: str) -> CallText:
    x_kind, w_kind, activation, x_format, dtype = text.split("|")
    return CallText(x_kind, w_kind, activation, x_format, dtype_named(dtype.removeprefix("torch.")))


def text_of(call: MatmulCall) -> str:
    words = call.x.kind, call.weights[0].kind, call.activation, call.x_format, str(call.out_dtype)
    return "|".join(words)


def op_arguments(call: MatmulCall) -> tuple[Any, ...]:
    """In the order of the schema."""
    x, first, rest = call.x, call.weights[0], call.weights[1:]
    if not x.is_plain:  # its codes do not say what k is
        check_k(call.verb, x, first)
    *_, n, k = first.shape
    return (
        x.tensors[0],
        [*first.tensors, *(rest[0].tensors if rest else ())],
        text_of(call),
        n,
        k,
        call.biases[0],
        call.biases[1] if rest else None,
        call.group_sizes,
        call.x_tensor_scale,
        None if x.is_plain else list(x.tensors[1:]),
        list(call.x_codebook) or None,
    )


def call_of(
    x: Tensor,
    w: Sequence[Tensor],
    text: str,
    n: int,
    k: int,
    bias: Tensor | None,
    up_bias: Tensor | None,
    group_sizes: Tensor | None,
    x_tensor_scale: Tensor | None,
    x_rest: Sequence[Tensor] | None,
    x_codebook: Sequence[float] | None,
) -> MatmulCall:
    """The call that an op was given."""
    said = parse_text(text)
    shape = (*w[0].shape[:-2], n, k)
    half = len(w) // 2
    weights = (w[:half], w[half:]) if said.activation else (w,)
    x_shape = (*x.shape[:-1], k) if said.x_kind else tuple(x.shape)
    return MatmulCall(
        Operand([x, *(x_rest or ())], said.x_kind, x_shape),
        [Operand(each, said.w_kind, shape) for each in weights],
        [bias, up_bias][: len(weights)],
        group_sizes,
        said.activation,
        said.x_format,
        x_codebook or (),
        x_tensor_scale,
        said.out_dtype,
    )


def tensors_in(arguments: Sequence[Any]) -> Iterator[Tensor]:
    for each in arguments:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from tensors_in(each)
