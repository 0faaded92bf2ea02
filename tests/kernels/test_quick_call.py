"""Calls that C code repeats: what it launches is what Python would, and what it leaves to Python.

No GPU is needed. The driver's launch is a function of this file, and tensors on the CPU stand for
those on a GPU: the kernel, which would read them, never runs.
"""

import ctypes
import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import blockscale as bs
from blockscale import ops
from blockscale.kernels.matmul import sm80
from blockscale.kernels.prepared import fragments
from blockscale.ops import plan as plans
from blockscale.ops import quick
from blockscale.ops.operand import as_groups
from blockscale.problem import Kind, Problem, dtype_name
from blockscale.runtime import load_quick_call
from blockscale.runtime.cuda import functions
from blockscale.runtime.cuda.driver import LaunchAttribute, LaunchConfig
from blockscale.tensor import find_plan

LOADED = load_quick_call()
pytestmark = pytest.mark.skipif(isinstance(LOADED, str), reason=str(LOADED))

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
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: self.device, raising=False)
        monkeypatch.setattr(
            torch._C, "_cuda_getCurrentRawStream", lambda index: self.stream, raising=False
        )
        monkeypatch.setattr(sm80, "function", self._function)
        chosen = lru_cache(maxsize=None)(lambda problem: self.choice)
        self.forget_choices = chosen.cache_clear
        monkeypatch.setattr(plans, "choose", chosen)
        monkeypatch.setattr(quick, "choose", chosen)

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

    def plan(self, q, x, bias=None, wide=False, deterministic=False, up=None, sizes=None):
        """As `make_plan` would for a GPU, kept with q; `up` is another weight and its bias."""
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
            target="sm_90",
        )
        config = next(each for each in sm80.configs(problem) if each.wide == wide)
        if not config.cluster and config.splits > 1:
            config = next(
                each
                for each in [*sm80.configs(problem), *sm80.candidates(problem)]
                if each.wide == wide and (each.cluster or each.splits == 1)
            )
        self.choice = ops.Choice(sm80, config, "by rule")
        launch = sm80.Launch(problem, config, tuple(as_groups(each.operand) for each in weights))
        launch._device = torch.device("cuda", 0)
        launch._overlaps = True
        self.size = len(launch._template)
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
        )
        activation = "silu" if gated else None
        q.plans[find_plan.plan_key(x, weights, biases, sizes, activation, None, None)] = plan
        return plan


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with torch.no_grad():
        yield Machine(monkeypatch)


@pytest.fixture
def q():
    return bs.quantize(torch.randn(N, K), bs.NVFP4).pack(fragments(bs.NVFP4))


def rows(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, K).to(dtype)


def settle(x, q, bias=None):
    """Three calls by Python, the last of which leaves a quick one."""
    for _ in range(3):
        bs.linear(x, q, bias)
    assert len(q.quick_calls) >= 1


def quickly(q, x, bias=None, up_bias=None, sizes=None, up=None, activation=None):
    return ops.run_quickly(q.quick_calls, x, bias, up_bias, sizes, up, activation)


def without_out(launch, kind):
    """Which each call has for itself."""
    facts, attributes, function, arguments = launch
    struct = kind.from_buffer_copy(arguments)
    struct.out = None
    return facts, attributes, function, bytes(struct)


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 1), (1, 1), (2, 1, 2), ()], ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_it_launches_what_python_would(machine, q, shape, biased, dtype):
    x, bias = rows(*shape, dtype=dtype), torch.randn(N) if biased else None
    plan = machine.plan(q, x, bias)
    settle(x, q, bias)
    out = quickly(q, x, bias)
    assert out.shape == (*shape, N)
    assert out.dtype == dtype
    assert out.is_contiguous()
    by_python, by_c = machine.launches[-2:]
    kind = plan.launch._arguments
    assert without_out(by_c, kind) == without_out(by_python, kind)
    arguments = kind.from_buffer_copy(by_c[3])
    assert arguments.out == out.data_ptr()
    assert arguments.settled == 1
    assert by_c[0][7] == 7  # the stream


def test_tensor_scales_are_watched_like_codes(machine, q):
    """The kernel reads them ahead of the one before, as it reads weights."""
    x = rows(1)
    plan = machine.plan(q, x)
    settle(x, q)
    assert quickly(q, x) is not None
    q.tensor_scale.mul_(2)
    assert quickly(q, x) is None
    bs.matmul(x, q)
    assert plan.launch._arguments.from_buffer_copy(machine.launches[-1][3]).settled == 0


def experts():
    return bs.quantize(torch.randn(3, N, K), bs.NVFP4).pack(fragments(bs.NVFP4))


@pytest.fixture
def unread(monkeypatch):
    """Group sizes, as on a GPU."""
    monkeypatch.setattr(find_plan, "_sizes_are_read", lambda x: False)


GATED = [(True, biased, dtype) for biased in ((0, 0), (1, 1), (0, 1)) for dtype in (None, "int64")]
GROUPED = [(False, (each, 0), dtype) for each in (0, 1) for dtype in ("int32", "int64")]


@pytest.mark.parametrize(("gated", "biased", "dtype"), [*GATED, *GROUPED])
def test_other_verbs_are_launched_as_python_would(machine, unread, gated, biased, dtype):
    gate, up = (experts() if dtype else experts()[0] for _ in range(2))
    x = rows(5)
    shape = (3, N) if dtype else (N,)
    biases = [torch.randn(shape) if each else None for each in biased]
    sizes = None if dtype is None else torch.tensor([1, 0, 4], dtype=getattr(torch, dtype))
    plan = machine.plan(gate, x, biases[0], up=(up, biases[1]) if gated else None, sizes=sizes)

    def call():
        if not gated:
            return bs.grouped_matmul(x, gate, sizes, biases[0])
        if sizes is None:
            return bs.gated_matmul(x, gate, up, "silu", *biases)
        return bs.grouped_gated_matmul(x, gate, up, sizes, "silu", *biases)

    for _ in range(3):
        call()
    assert len(gate.quick_calls) == 1
    more = (up, "silu") if gated else (None, None)
    out = quickly(gate, x, biases[0], biases[1] if gated else None, sizes, *more)
    assert out.shape == (5, N)
    by_python, by_c = machine.launches[-2:]
    kind = plan.launch._arguments
    assert without_out(by_c, kind) == without_out(by_python, kind)
    arguments = kind.from_buffer_copy(by_c[3])
    assert arguments.out == out.data_ptr()
    launched = len(machine.launches)
    assert call().shape == (5, N)
    assert len(machine.launches) == launched + 1


def test_another_up_activation_or_sizes_are_left_to_python(machine, unread, monkeypatch):
    gate, up, x = experts(), experts(), rows(5)
    sizes = torch.tensor([1, 0, 4])
    machine.plan(gate, x, up=(up, None), sizes=sizes)
    for _ in range(3):
        bs.grouped_gated_matmul(x, gate, up, sizes)
    assert quickly(gate, x, sizes=sizes, up=up, activation="silu") is not None
    assert quickly(gate, x, sizes=sizes, up=experts(), activation="silu") is None
    assert quickly(gate, x, sizes=sizes, up=up, activation="gelu") is None
    assert quickly(gate, x, sizes=sizes.int(), up=up, activation="silu") is None
    assert quickly(gate, x, sizes=sizes.repeat(2)[::2], up=up, activation="silu") is None
    assert quickly(gate, x, sizes=None, up=up, activation="silu") is None
    assert quickly(gate, x, torch.randn(3, N), sizes=sizes, up=up, activation="silu") is None
    with pytest.raises(TypeError, match="group_sizes is None"):
        bs.grouped_gated_matmul(x, gate, up, None)
    monkeypatch.setenv("BLOCKSCALE_CHECK", "1")
    assert quickly(gate, x, sizes=sizes, up=up, activation="silu") is None


def test_weights_that_are_gate_and_up_of_each_other_are_let_go(machine):
    one, two = (experts()[0] for _ in range(2))
    x = rows(5)
    for gate, up in ((one, two), (two, one)):
        machine.plan(gate, x, up=(up, None))
        for _ in range(3):
            bs.gated_matmul(x, gate, up)
        assert len(gate.quick_calls) == 1
    seen = [weakref.ref(each.codes) for each in (one, two)]
    del one, two, gate, up
    gc.collect()
    assert [each() for each in seen] == [None, None]


def test_kernels_that_need_a_map_of_x_get_it(machine, q, monkeypatch):
    asked = []

    def invented(*facts):
        asked.append(facts)
        return bytes([len(asked)]) * 128

    monkeypatch.setattr("blockscale.kernels.cuda_arguments.tensor_map", invented)
    monkeypatch.setattr(sm80, "matrix_map", invented)
    x = rows(64)
    plan = machine.plan(q, x, wide=True)
    settle(x, q)
    assert quickly(q, x) is not None
    assert asked[-1] == asked[-2]
    by_python, by_c = (
        plan.launch._arguments.from_buffer_copy(at[3]) for at in machine.launches[-2:]
    )
    assert bytes(by_c.x_map) == bytes([len(asked)]) * 128
    by_python.x_map, by_python.out = by_c.x_map, by_c.out
    assert bytes(by_python) == bytes(by_c)
    overlapping = rows(1).expand(64, K)
    assert quickly(q, overlapping) is None


def test_rows_of_something_larger_are_taken_where_they_are(machine, q):
    x = torch.randn(4, 2 * K).bfloat16()[:, :K]
    plan = machine.plan(q, x)
    settle(x, q)
    assert quickly(q, x) is not None
    arguments = plan.launch._arguments.from_buffer_copy(machine.launches[-1][3])
    assert (arguments.x, arguments.x_stride) == (x.data_ptr(), 2 * K)


@pytest.mark.parametrize("cut", [(slice(None), slice(-1, None)), (slice(None), slice(0, 1))])
def test_the_last_of_many_tokens(machine, q, cut):
    x = rows(3, 5)[cut]
    plan = machine.plan(q, x)
    settle(x, q)
    assert quickly(q, x) is not None
    by_python, by_c = machine.launches[-2:]
    kind = plan.launch._arguments
    assert without_out(by_c, kind) == without_out(by_python, kind)
    assert kind.from_buffer_copy(by_c[3]).x_stride == 5 * K


class Subclass(torch.Tensor):
    pass


UNUSUAL = {
    "another number of rows": lambda: rows(2),
    "another number of dimensions": lambda: rows(1, 1),
    "another dtype": lambda: rows(1, dtype=torch.float16),
    "another device": lambda: rows(1).to("meta"),
    "unaligned": lambda: torch.empty(K + 1, dtype=torch.bfloat16)[1:].view(1, K),
    "rows that are not aligned": lambda: torch.empty(1, K + 1, dtype=torch.bfloat16)[:, :K],
    "columns apart": lambda: torch.empty(1, 2 * K, dtype=torch.bfloat16)[:, ::2],
    "sparse": lambda: rows(1).to_sparse(),
    "a subclass": lambda: rows(1).as_subclass(Subclass),
    "no tensor": lambda: "x",
    "nothing": lambda: None,
}


@pytest.mark.parametrize("reason", UNUSUAL)
def test_x_that_is_left_to_python(machine, q, reason):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    launched = len(machine.launches)
    assert quickly(q, UNUSUAL[reason]()) is None
    assert len(machine.launches) == launched
    assert quickly(q, x) is not None


def test_biases_that_are_left_to_python(machine, q):
    x, bias = rows(1), torch.randn(N)
    machine.plan(q, x, bias)
    settle(x, q, bias)
    for other in (None, torch.randn(1), bias.bfloat16(), torch.randn(2 * N)[::2], "bias"):
        assert quickly(q, x, other) is None
    assert quickly(q, x, torch.randn(N)) is not None
    assert quickly(q, x, torch.nn.Parameter(bias)) is not None
    with torch.enable_grad():
        assert quickly(q, x, torch.nn.Parameter(bias)) is None


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        return function(*arguments, **(named or {}))


class Listening(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize(
    "watcher", [Watching, Listening, bs.deterministic], ids=lambda each: each.__name__
)
def test_watchers_and_wishes(machine, q, watcher):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    with watcher():
        assert quickly(q, x) is None
    assert quickly(q, x) is not None


def test_transforms_and_traces(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    told = []

    def ask(y):
        told.append(quickly(q, x))
        return y

    torch.vmap(ask)(torch.ones(2))
    torch.jit.trace(ask, torch.ones(2), check_trace=False)
    assert told == [None, None]
    assert quickly(q, x) is not None


def test_gradients(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    with torch.enable_grad():
        assert quickly(q, x) is not None
        assert quickly(q, torch.nn.Parameter(x)) is None
        assert quickly(q, rows(1).requires_grad_()) is None
    assert quickly(q, torch.nn.Parameter(x)) is not None


@pytest.mark.parametrize("forbidden", [False, True])
def test_compilers_never_see_it(monkeypatch, forbidden):
    def forbid(*_):
        raise AssertionError

    canonical = bs.quantize(torch.randn(32, 64), bs.NVFP4)
    if forbidden:
        monkeypatch.setattr(find_plan, "_run_quickly", forbid)
        with pytest.raises(AssertionError):
            bs.matmul(torch.randn(1, 64), canonical)
    compiled = torch.compile(
        lambda x: bs.linear(x, canonical) + bs.matmul(x, canonical), backend="eager", fullgraph=True
    )
    assert compiled(torch.randn(1, 64)).shape == (1, 32)


def test_weights_that_change_settle_again(machine, q):
    x = rows(1)
    plan = machine.plan(q, x)
    settle(x, q)
    settled = []
    for change in (lambda: None, lambda: q.scale.fill_(3), lambda: q.codes.zero_()):
        before = machine.kernels
        change()
        del machine.launches[:]
        for _ in range(5):
            bs.matmul(x, q)
        kinds = [plan.launch._arguments.from_buffer_copy(each[3]) for each in machine.launches]
        settled.append([each.settled for each in kinds])
        assert machine.kernels - before == (0 if len(settled) == 1 else 1)
        assert len(q.quick_calls) == 1
        assert quickly(q, x) is not None
    assert settled == [5 * [1], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1]]


def test_weights_of_inference_have_no_version(machine):
    with torch.inference_mode():
        q = bs.quantize(torch.randn(N, K), bs.NVFP4).pack(fragments(bs.NVFP4))
        x = rows(1)
        machine.plan(q, x)
        settle(x, q)
        out = quickly(q, x)
        assert out.is_inference()


def test_another_choice_of_kernel(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    machine.forget_choices()
    machine.choice = machine.choice._replace(reason="tuned")
    assert quickly(q, x) is None
    plan = machine.plan(q, x)
    settle(x, q)
    assert [each.kept for each in q.quick_calls] == [plan]
    assert quickly(q, x) is not None


def test_other_streams_and_devices(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    machine.stream = 2**63 + 11
    assert quickly(q, x) is not None
    assert machine.launches[-1][0][7] == 2**63 + 11
    machine.device = 1
    assert quickly(q, x) is None


def test_what_the_driver_refuses_is_told_by_python(machine, q, monkeypatch):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    told = []
    monkeypatch.setattr(functions, "check", lambda status, doing: told.append((status, doing)))
    machine.status = 1
    launched = len(machine.launches)
    assert quickly(q, x) is None
    bs.matmul(x, q)
    assert told[0][0] == 1
    assert "stream.cu" in told[0][1]
    assert len(machine.launches) == launched


def test_running_out_of_memory(machine, q, monkeypatch):
    x, full = rows(1), []

    def unless_full(really):
        def empty(*arguments, **options):
            if full:
                raise torch.OutOfMemoryError("full")
            return really(*arguments, **options)

        return empty

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, unless_full(getattr(torch, name)))
    machine.plan(q, x)
    settle(x, q)
    launched = len(machine.launches)
    full.append(True)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        bs.matmul(x, q)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        quickly(q, x)
    assert len(machine.launches) == launched
    full.clear()
    assert quickly(q, x) is not None


def test_interruptions_are_not_lost(machine, q, monkeypatch):
    x, interrupted = rows(1), []

    def stream(index):
        if interrupted:
            raise KeyboardInterrupt
        return 7

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", stream, raising=False)
    machine.plan(q, x)
    settle(x, q)
    interrupted.append(True)
    with pytest.raises(KeyboardInterrupt):
        quickly(q, x)
    interrupted.clear()
    assert quickly(q, x) is not None


def test_several_shapes_are_kept_and_not_too_many(machine, q):
    every = [rows(m) for m in range(1, quick._MOST + 4)]
    for x in every:
        machine.plan(q, x)
        for _ in range(4):
            bs.matmul(x, q)
    kept = list(q.quick_calls)
    assert len(kept) == quick._MOST
    found = [quickly(q, x) is not None for x in every]
    assert found == [True] * quick._MOST + [False] * 3
    bs.matmul(every[-1], q)
    assert q.quick_calls == kept  # others do not make room: each would be made again and again
    q.scale.copy_(q.scale)
    settle(every[-1], q)
    assert quickly(q, every[-1]) is not None  # those before it are of no use any more
    assert len(q.quick_calls) <= quick._MOST


def test_more_dimensions_than_it_compares_are_left_to_python(machine, q):
    x = rows(*[1] * 7, 2)
    machine.plan(q, x)
    for _ in range(5):
        assert bs.matmul(x, q).shape == (*[1] * 7, 2, N)
    assert not q.quick_calls


def test_forward_gradients_are_left_to_python(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    assert quickly(q, x) is not None
    with torch.autograd.forward_ad.dual_level():
        assert quickly(q, x) is None


def test_nothing_is_leaked(machine, q):
    x, bias = rows(1), torch.randn(N)
    plan = machine.plan(q, x, bias)
    settle(x, q, bias)
    held = [x, bias, q, q.codes, q.quick_calls[0], plan, None, False, True, 0, torch.empty_like]
    held += [torch.bfloat16, plan.out_shape, plan.choice, plan.problem, Watching]
    unaligned = UNUSUAL["unaligned"]()

    def call():
        assert quickly(q, x, bias) is not None
        assert quickly(q, x) is None
        assert quickly(q, unaligned, bias) is None
        with torch.enable_grad():
            assert quickly(q, x, torch.nn.Parameter(bias)) is None
        machine.status = 1
        assert quickly(q, x, bias) is None
        machine.status = 0

    call()
    before = [sys.getrefcount(each) for each in held]
    for _ in range(1000):
        call()
        machine.launches.clear()
    after = [sys.getrefcount(each) for each in held]
    assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True)), (before, after)
    out = weakref.ref(quickly(q, x, bias))
    assert out() is None


def test_it_goes_with_its_weights(machine):
    q = bs.quantize(torch.randn(N, K), bs.NVFP4).pack(fragments(bs.NVFP4))
    x = rows(1)
    plan = weakref.ref(machine.plan(q, x))
    settle(x, q)
    codes = weakref.ref(q.codes)
    del q
    gc.collect()
    assert plan() is None
    assert codes() is None


def test_threads(machine, q):
    every = [rows(m) for m in (1, 2, 3)]
    for x in every:
        machine.plan(q, x)
        settle(x, q)

    def work(number):
        x = every[number % 3]
        with torch.no_grad():
            for i in range(300):
                if i % 50 == number:
                    q.quick_calls[:] = list(reversed(q.quick_calls))
                assert bs.matmul(x, q).shape == (len(x), N)
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


def test_nonsense_is_refused(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    for arguments in ((), ((), x, None), ([x], x, None)):
        with pytest.raises(TypeError):
            LOADED.run(*arguments)
    with pytest.raises(TypeError):
        LOADED.QuickCall(key=1)
    with pytest.raises((TypeError, ValueError)):
        LOADED.use(None, None, None, None)
