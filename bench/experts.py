"""A layer of experts on a GPU: gate and up, then down, of rows that are sorted by expert.

Only the experts that a token is routed to are read, so a ring is one of routings and not of copies
of the layer: every call finds other experts. What all of this is compared with is torch's grouped
product in bfloat16, two of them and the activation between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import silu

import blockscale as bs
from bench.conversions import only_reference
from bench.cuda_timing import RING_CACHES, l2_bytes
from bench.duel import FLOOR, Way, duel
from bench.measurements import Measurement
from bench.problems import EXPERT_LAYERS, ExpertLayer
from bench.random_weights import random_weight
from bench.results import BASELINE
from bench.rivals.cuda_read import CudaMemory
from bench.timing import Call, Clock
from blockscale.kernels.cuda.layout import fragments
from blockscale.nn.routing import gather_rows, sort_by_expert, sum_of_experts
from blockscale.problem import Kind, Problem
from blockscale.runtime import Device

FORMATS = (bs.NVFP4, bs.MXFP4, bs.KBIT4)
WORK = "Experts: gate and up, activation, down"
ROUTING = "Routing to experts and back: sort, gather, weighted sum"
FEWEST_CALLS, MOST_CALLS = 16, 64  # of a ring; one routing in particular says little of others
_CHECKED = 3  # experts of a call, of those that have rows
# Two products with operands and results in bfloat16, each value off by up to 2^-8 a few times over.
_TOLERANCE = 0.02


def problems(device: Device) -> list[Problem]:
    """All that is launched here."""
    found = []
    for layer in EXPERT_LAYERS:
        for format in FORMATS:
            for tokens in layer.tokens:
                found += _problems(layer, format, tokens, device)
    return found


def measure(clock: Clock, seconds: float) -> Iterator[Measurement]:
    for layer in EXPERT_LAYERS:
        generator = torch.Generator(clock.device).manual_seed(0)
        plain = _plain_weights(layer, clock.device, generator)
        ours = {format: _weights(layer, format, clock.device) for format in FORMATS}
        for tokens in layer.tokens:
            x = torch.randn(
                tokens * layer.top,
                layer.hidden,
                dtype=torch.bfloat16,
                device=clock.device,
                generator=generator,
            )
            for format in FORMATS:
                yield from _measure(layer, tokens, x, format, ours[format], plain, clock, seconds)
            yield from _measure_routing(layer, tokens, x, clock, seconds)


def _measure(
    layer: ExpertLayer,
    tokens: int,
    x: Tensor,
    format: bs.Format,
    weights: tuple[bs.QTensor, ...],
    plain: tuple[Tensor, Tensor],
    clock: Clock,
    seconds: float,
) -> list[Measurement]:
    expert_bytes = round(3 * layer.hidden * layer.inner * format.bits_per_value / 8)
    count = calls_of_a_ring(layer, tokens, expert_bytes, l2_bytes(x.device))
    sizes = [each.to(x.device) for each in routings(layer, tokens, count)]
    ends = [each.cumsum(0, dtype=torch.int32) for each in sizes]
    read = sum(int((each > 0).sum()) for each in sizes) // len(sizes) * expert_bytes
    first = sizes[0].tolist()
    ways = [
        Way(
            format.name.upper(),
            lambda: [partial(_layer, x, weights, each) for each in sizes],
            lambda: worst_row(
                _layer(x, weights, sizes[0]), x, first, lambda e: [_exact(q, e) for q in weights]
            ),
        ),
        Way(
            BASELINE,
            lambda: [partial(_plain_layer, x, plain, each) for each in ends],
            lambda: worst_row(
                _plain_layer(x, plain, ends[0]), x, first, lambda e: _plain_exact(plain, e)
            ),
        ),
        Way(FLOOR, lambda: _reads(read, clock)),
    ]
    return duel(
        WORK,
        _described(layer, tokens),
        ways,
        clock,
        seconds,
        beside=BASELINE,
        tolerance=_TOLERANCE,
    )


def _measure_routing(
    layer: ExpertLayer, tokens: int, rows: Tensor, clock: Clock, seconds: float
) -> list[Measurement]:
    """What turns tokens into such rows, and their results into tokens, without the products."""
    generator = torch.Generator(rows.device).manual_seed(0)
    draws = torch.rand(tokens, layer.experts, device=rows.device, generator=generator)
    weights, index = draws.topk(layer.top, dim=1)
    x = rows[:tokens]

    def route() -> Tensor:
        order, _sizes = sort_by_expert(index, layer.experts)
        return sum_of_experts(gather_rows(x, order, layer.top).float(), order, weights)

    def error() -> float:
        wanted = x.double() * weights.double().sum(1, keepdim=True)
        return ((route() - wanted).norm() / wanted.norm()).item()

    ways = [Way("torch", lambda: [route], error)]
    return duel(ROUTING, _described(layer, tokens), ways, clock, seconds, tolerance=1e-6)


def _described(layer: ExpertLayer, tokens: int) -> str:
    size = f"{layer.hidden} x {layer.inner}"
    return f"{layer.experts} experts, top {layer.top}, {size}, {tokens} tokens"


def calls_of_a_ring(layer: ExpertLayer, tokens: int, expert_bytes: int, cache: int) -> int:
    """As many as read more than the caches hold, a few times over."""
    share = 1 - (1 - layer.top / layer.experts) ** tokens  # of experts with rows, on average
    enough = ceil(RING_CACHES * cache / (layer.experts * share * expert_bytes))
    return max(FEWEST_CALLS, min(enough, MOST_CALLS))


def routings(layer: ExpertLayer, tokens: int, count: int) -> list[Tensor]:
    """Rows of each expert, int32 [experts]: every token goes to `top` distinct ones at random.

    Single tokens are dealt from a shuffled deck, so that the next calls do not read what the caches
    still have.
    """
    generator = torch.Generator().manual_seed(0)
    deck = Tensor()
    found = []
    for _ in range(count):
        if tokens == 1:
            if len(deck) < layer.top:
                deck = torch.randperm(layer.experts, generator=generator)
            chosen, deck = deck[: layer.top], deck[layer.top :]
        else:
            draws = torch.rand(tokens, layer.experts, generator=generator)
            chosen = draws.topk(layer.top, dim=1).indices.flatten()
        found.append(torch.bincount(chosen, minlength=layer.experts).to(torch.int32))
    return found


def worst_row(
    y: Tensor, x: Tensor, sizes: Sequence[int], exact: Callable[[int], Sequence[Tensor]]
) -> float:
    """The largest relative error of a row, of some experts.

    exact: gate, up and down of an expert in float64
    """
    errors, start, checked = [], 0, 0
    for expert, size in enumerate(sizes):
        part = slice(start, start + size)
        start += size
        if size and checked < _CHECKED:
            checked += 1
            gate, up, down = exact(expert)
            rows = x[part].double()
            wanted = (silu(rows @ gate.T) * (rows @ up.T)) @ down.T
            off = (y[part].double() - wanted).norm(dim=1) / wanted.norm(dim=1)
            errors.append(off.max().item())
    return max(errors) if all(each == each for each in errors) else float("nan")


def _layer(x: Tensor, weights: tuple[bs.QTensor, ...], sizes: Tensor) -> Tensor:
    gate, up, down = weights
    return bs.grouped_matmul(bs.grouped_gated_matmul(x, gate, up, sizes), down, sizes)


def _plain_layer(x: Tensor, weights: tuple[Tensor, Tensor], ends: Tensor) -> Tensor:
    gate_up, down = weights
    gate, up = grouped_mm(x, gate_up.transpose(1, 2), ends).chunk(2, dim=1)
    return grouped_mm(silu(gate) * up, down.transpose(1, 2), ends)


def grouped_mm(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """torch's, whose name depends on its version."""
    multiply = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    return multiply(x, w, offs=ends)


def _weights(
    layer: ExpertLayer, format: bs.Format, device: torch.device | str
) -> tuple[bs.QTensor, ...]:
    """gate, up and down, with tensor scales that keep values near those of x."""
    place = fragments(format)
    if place is None:
        raise ValueError(f"no kernel for GPUs reads {format}")
    found = []
    for seed, (n, k) in enumerate(_shapes(layer)):
        q = random_weight(format, (layer.experts, n, k), place, device, seed)
        if q.tensor_scale is not None:
            q.tensor_scale.fill_(2.0**-6)
        found.append(q)
    return tuple(found)


def _shapes(layer: ExpertLayer) -> list[tuple[int, int]]:
    return [(layer.inner, layer.hidden)] * 2 + [(layer.hidden, layer.inner)]


def _exact(q: bs.QTensor, expert: int) -> Tensor:
    with only_reference("dequantize"):
        return q[expert].dequantize(torch.float32).double()


def _plain_weights(
    layer: ExpertLayer, device: torch.device | str, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """gate over up [e, 2 inner, hidden], and down [e, hidden, inner]."""

    def normal(n: int, k: int) -> Tensor:
        w = torch.empty(layer.experts, n, k, dtype=torch.bfloat16, device=device)
        return w.normal_(0, k**-0.5, generator=generator)

    return normal(2 * layer.inner, layer.hidden), normal(layer.hidden, layer.inner)


def _plain_exact(weights: tuple[Tensor, Tensor], expert: int) -> list[Tensor]:
    gate_up, down = weights
    return [*gate_up[expert].double().chunk(2), down[expert].double()]


def _reads(size: int, clock: Clock) -> list[Call]:
    """A ring of plain reads of so many bytes, rounded to what a thread loads."""
    count = max(1, ceil(clock.ring_bytes(1) / size))
    shape = (size // 16 * 16,)
    ring = [
        torch.randint(0, 256, shape, dtype=torch.uint8, device=clock.device) for _ in range(count)
    ]
    return [CudaMemory(memory, overlap=True).bind(memory) for memory in ring]


def _problems(layer: ExpertLayer, format: bs.Format, tokens: int, device: Device) -> list[Problem]:
    facts = {
        "m": tokens * layer.top,
        "groups": layer.experts,
        "ragged": True,
        "x": "bfloat16",
        "w": str(Kind(format, fragments(format))),
        "out": "bfloat16",
        "device": device,
    }
    gate, _, down = _shapes(layer)
    return [
        Problem(
            verb="grouped_gated_matmul",
            n=gate[0],
            k=gate[1],
            gated=True,
            activation="silu",
            **facts,
        ),
        Problem(verb="grouped_matmul", n=down[0], k=down[1], **facts),
    ]
