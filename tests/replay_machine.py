"""A stub of a GPU for calls that C code repeats.

The driver's launch is a function of this file, and tensors on the CPU stand for those on a GPU: the
kernel, which would read them, never runs.
"""

import ctypes
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import blockscale as bs
from blockscale import ops
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul import sm90_gemm, stream
from blockscale.kernels.matmul.fragments import product as fragment_product
from blockscale.kernels.matmul.sm90_gemm.space import every_config as every_gemm
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.space import every_config
from blockscale.ops import plan as plans
from blockscale.ops import replay
from blockscale.ops.operand import as_groups
from blockscale.problem import Kind, Problem, dtype_name
from blockscale.runtime import gpu, load_replay, torch_private
from blockscale.runtime.cuda import functions
from blockscale.runtime.cuda.driver import LaunchAttribute, LaunchConfig
from blockscale.tensor import plan_cache

LOADED = load_replay()
NEEDS_EXTENSION = pytest.mark.skipif(isinstance(LOADED, str), reason=str(LOADED))


N, K = 512, 1024


LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * 4)


class Machine:
    """A GPU that only writes down what it is asked to launch."""

    def __init__(self, monkeypatch):
        self.launches = []  # config but for pointers, attributes, function, the kernel's arguments
        self.status = 0
        self.device, self.stream = 0, 7
        self.kernels = 0
        self.choice = None
        self.size = 0
        self.entry = LAUNCH(self._launch)
        monkeypatch.setattr(torch_private, "current_device", lambda: self.device)
        monkeypatch.setattr(torch_private, "raw_stream", lambda index: self.stream)
        monkeypatch.setattr(fragment_product, "function", self._function)
        chosen = lru_cache(maxsize=None)(lambda problem: self.choice)
        self.forget_choices = chosen.cache_clear
        monkeypatch.setattr(plans, "choose", chosen)
        monkeypatch.setattr(replay, "choose", chosen)

    def _function(self, build, device):
        self.kernels += 1
        kernel = functions.Function.__new__(functions.Function)
        kernel.build, kernel._index, kernel._handle = build, 0, 5
        kernel._launch = self.entry
        kernel._configs, kernel._max_shared = {}, 10**6
        return kernel

    def _launch(self, config, function, parameters, extra):
        if self.status:
            return self.status
        told = LaunchConfig.from_address(config)
        facts = [getattr(told, name) for name, _ in told._fields_ if name != "attributes"]
        size = ctypes.sizeof(LaunchAttribute) * told.attribute_count
        attributes = ctypes.string_at(told.attributes, size) if size else b""
        struct = ctypes.c_void_p.from_address(parameters).value
        self.launches.append((facts, attributes, function, ctypes.string_at(struct, self.size)))
        return 0

    def plan(
        self, q, x, bias=None, wide=False, deterministic=False, up=None, sizes=None, split=False
    ):
        """As `make_plan` would for a GPU, kept with q; `up` is another weight and its bias. `split`
        is for a product whose CTAs leave sums for each other."""
        m = x.numel() // K
        gated, groups = up is not None, 1 if sizes is None else len(sizes)
        verb = ("grouped_" if sizes is not None else "") + ("gated_" if gated else "") + "matmul"
        weights, biases = ([q], [bias]) if up is None else ([q, up[0]], [bias, up[1]])
        biased = any(each is not None for each in biases)
        problem = Problem(
            verb=verb,
            m=m,
            n=N,
            k=K,
            groups=groups,
            ragged=sizes is not None,
            gated=gated,
            activation="silu" if gated else "",
            bias=biased,
            deterministic=deterministic,
            x=dtype_name(x.dtype),
            w=str(Kind(q.format, q.layout)),
            out=dtype_name(x.dtype),
            device=gpu("sm_90"),
        )
        several_turns = replace(problem, m=16)  # of more rows than `mma` is chosen for
        every = (*every_config(facts_of(problem)), *every_config(facts_of(several_turns)))
        config = next(each for each in every if each.wgmma == wide)
        kernel = stream
        if split:
            kernel, config = sm90_gemm, next(each for each in every_gemm(problem) if each.split)
        self.choice = ops.Choice(kernel, config, "by rule")
        parts = tuple(as_groups(each.operand) for each in weights)
        frozen = all(each.frozen for each in weights)
        launch = kernel.bind(problem, config, parts, frozen)
        launch._device = torch.device("cuda", 0)
        launch._pdl = True
        self.size = len(launch._template)
        tensors = tuple(tensor for each in weights for tensor in each.tensors)
        plan = ops.Plan(
            launch=launch,
            choice=plans.choose(problem),
            problem=problem,
            x_rows=None if x.dim() == 2 else (m, K),
            bias_shape=(groups, N) if biased else None,
            out_rows=(m, N),
            out_shape=(*x.shape[:-1], N),
            out_dtype=x.dtype,
            kept=tuple(weights[1:]),
            tensors=tensors,
            addresses=tuple(tensor.data_ptr() for tensor in tensors),
        )
        activation = "silu" if gated else None
        q.plans[plan_cache.plan_key(x, weights, biases, sizes, activation, None, None)] = plan
        return plan

    def plan_by_address(self, q, x, bias=None):
        """As `plan`, of a call that knows its weights as bare tensors."""
        of_owner = self.plan(q, x, bias)
        q.plans.clear()
        problem, config = of_owner.problem, of_owner.choice.config
        launch = of_owner.choice.kernel.bind(problem, config, (as_groups(q.operand),))
        launch._device, launch._pdl = torch.device("cuda", 0), True
        return replace(of_owner, launch=launch, tensors=(), addresses=())


def rows(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, K).to(dtype)


def unaligned():
    return torch.empty(K + 1, dtype=torch.bfloat16)[1:].view(1, K)


def experts():
    return bs.quantize(torch.randn(3, N, K), bs.NVFP4).pack(fragments(bs.NVFP4))


def settle(x, q, bias=None):
    """Three calls by Python, the last of which leaves a replay."""
    for _ in range(3):
        bs.linear(x, q, bias)
    assert len(q.replays) >= 1


def replayed(q, x, bias=None, up_bias=None, sizes=None, up=None, activation=None):
    return ops.run_replay(q.replays, x, bias, up_bias, sizes, up, activation)


def without_out(launch, kind):
    """Which each call has for itself."""
    facts, attributes, function, arguments = launch
    struct = kind.from_buffer_copy(arguments)
    struct.out = None
    return facts, attributes, function, bytes(struct)


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        return function(*arguments, **(named or {}))
