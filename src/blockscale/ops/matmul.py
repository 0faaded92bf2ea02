"""The matmul family: validate, choose, launch. One path for all verbs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from blockscale.formats import parse_spec
from blockscale.numerics import parse_activation
from blockscale.ops import validate
from blockscale.ops.choose import bind, choose
from blockscale.ops.operand import Operand, as_groups, as_rows
from blockscale.ops.prepared import x_layout
from blockscale.ops.quantize import quantize_activations, quantize_blocked_activations
from blockscale.problem import Kind, Problem, dtype_name
from blockscale.runtime import checks_enabled, device_of, is_deterministic


@dataclass(frozen=True)
class MatmulCall:
    """Everything a call of the family says. weights and biases: one each, or gate's and up's."""

    x: Operand
    weights: Sequence[Operand]
    biases: Sequence[Tensor | None]
    group_sizes: Tensor | None
    activation: str
    x_format: str  # the spec x is quantised to on the fly, or ""
    x_codebook: Sequence[float]  # its table, where it has one
    x_tensor_scale: Tensor | None
    out_dtype: torch.dtype

    @property
    def verb(self) -> str:
        gated = "gated_" if self.activation else ""
        return f"grouped_{gated}matmul" if self.group_sizes is not None else f"{gated}matmul"

    @property
    def out_shape(self) -> list[int]:
        return [*self.x.shape[:-1], self.weights[0].shape[-2]]

    def validate(self) -> None:
        """Shapes, dtypes and devices; group sizes are looked at when the call runs."""
        verb, x, weight = self.verb, self.x, self.weights[0]
        names = ("gate", "up") if self.activation else ("w",)
        for name, each in zip(names, self.weights, strict=True):
            validate.check_weight(verb, name, each)
        validate.check_x(verb, x, weight, self.group_sizes is not None)
        bias_shape = (*weight.shape[:-2], weight.shape[-2])
        for name, bias in zip(names, self.biases, strict=True):
            validate.check_bias(
                verb, f"{name}_bias" if self.activation else "bias", bias, bias_shape
            )
        if self.group_sizes is None:
            validate.check_batch(verb, x, weight)
        else:
            validate.check_groups(verb, x, weight, self.group_sizes)
        validate.check_out_dtype(verb, self.out_dtype)
        if self.activation:
            parse_activation(self.activation)
        if self.x_format and not x.is_plain:
            raise ValueError(f"{verb}: x is quantised already ({x.kind}); leave x_format out")
        validate.check_x_tensor_scale(verb, x, self.x_format, self.x_tensor_scale)
        devices: list[tuple[str, torch.device | None]] = [("x", x.device)]
        devices += [(name, each.device) for name, each in zip(names, self.weights, strict=True)]
        devices += [("bias", bias.device if bias is not None else None) for bias in self.biases]
        for name, part in (
            ("group_sizes", self.group_sizes),
            ("x_tensor_scale", self.x_tensor_scale),
        ):
            devices.append((name, None if part is None else part.device))
        validate.check_devices(verb, devices)

    @property
    def tensors(self) -> Iterator[Tensor | None]:
        """Every tensor of the call."""
        for operand in (self.x, *self.weights):
            yield from operand.tensors
        yield from self.biases
        yield self.group_sizes
        yield self.x_tensor_scale

    @property
    def differentiated(self) -> tuple[Tensor | None, ...]:
        """What gradients flow to: x, None where it is quantised, and the biases."""
        return (self.x.tensors[0] if self.x.is_plain else None), *self.biases

    @property
    def facts(self) -> tuple[object, ...]:
        """All that `validate` and `problem` look at: calls that agree in it pass together."""
        described = (
            None if part is None else (part.shape, part.dtype, part.device) for part in self.tensors
        )
        weight = self.weights[0]
        return (
            *(self.x.kind, tuple(self.x.shape), weight.kind, tuple(weight.shape)),
            *(self.activation, self.x_format, self.out_dtype, is_deterministic()),
            *described,
        )

    def _x_label(self) -> str:
        """x as the kernel sees it: quantised, where it is to be quantised on the fly."""
        if not self.x_format:
            return self.x.label
        return str(self._x_kind())

    def _x_kind(self) -> Kind:
        """Of x that is quantised on the fly."""
        format = parse_spec(self.x_format)
        return Kind(format, x_layout(format, self.weights[0].parsed, device_of(self.x.device)))

    def problem(self) -> Problem:
        """The facts that choose the kernel."""
        weight, ragged = self.weights[0], self.group_sizes is not None
        groups = weight.shape[0] if len(weight.shape) == 3 else 1
        rows = prod(self.x.shape[:-1])
        return Problem(
            verb=self.verb,
            m=rows if ragged else rows // max(groups, 1),
            n=weight.shape[-2],
            k=weight.shape[-1],
            groups=groups,
            ragged=ragged,
            gated=bool(self.activation),
            bias=any(bias is not None for bias in self.biases),
            activation=self.activation,
            deterministic=is_deterministic(),
            x=self._x_label(),
            w=weight.kind,
            out=dtype_name(self.out_dtype),
            device=device_of(self.x.device),
        )


_passed: dict[tuple[object, ...], Problem] = {}  # facts of calls that were checked
_MOST_PASSED = 4096


def run_checked(call: MatmulCall) -> Tensor:
    """Check a call, unless one like it has passed, and run it."""
    facts = call.facts
    problem = _passed.get(facts)
    if problem is None:
        call.validate()
        problem = call.problem()
        if len(_passed) >= _MOST_PASSED:
            _passed.clear()
        _passed[facts] = problem
    return run(call, problem)


def run(call: MatmulCall, problem: Problem | None = None) -> Tensor:
    """Quantise x if asked to, pick a kernel, launch it. The call has been validated."""
    if call.x_tensor_scale is not None:
        validate.check_positive(call.verb, "x_tensor_scale", call.x_tensor_scale)
    if problem is None:
        problem = call.problem()
    for weight in call.weights:
        validate.check_allocated(call.verb, weight)
    if call.x_format and not quantizes_x(problem):
        call = _with_quantized_x(call)
    if call.group_sizes is not None and (call.group_sizes.device.type == "cpu" or checks_enabled()):
        validate.check_group_values(call.verb, call.group_sizes.tolist(), problem.m)
    out = torch.empty(call.out_shape, dtype=call.out_dtype, device=call.x.device)
    if problem.rows and problem.n:
        launch = bind(problem, tuple(as_groups(weight) for weight in call.weights))
        launch(
            as_rows(call.x),
            tuple(_as_group_bias(bias, problem) for bias in call.biases),
            call.group_sizes,
            out if out.dim() == 2 else out.view(problem.rows, problem.n),
        )
    return out


def quantizes_x(problem: Problem) -> bool:
    """Whether x that is to be quantised on the fly is left to the kernel."""
    return choose(problem).config.quantizes_x


def _with_quantized_x(call: MatmulCall) -> MatmulCall:
    kind, given, scale = call._x_kind(), call.x.tensors[0], call.x_tensor_scale
    if kind.layout.scales == "blocked":
        batched = call.group_sizes is None and len(call.weights[0].shape) == 3
        x = quantize_blocked_activations(given, kind, scale, given.shape[0] if batched else 1)
    else:
        x = quantize_activations(given, call.x_format, call.x_codebook, scale)
    return replace(call, x=x, x_format="", x_codebook=(), x_tensor_scale=None)


def _as_group_bias(bias: Tensor | None, problem: Problem) -> Tensor | None:
    return None if bias is None else bias.reshape(problem.groups, problem.n)
