"""Calls of an op go to its kernel where nobody watches, as compiled programs make them; to torch's
dispatcher where somebody does."""

import gc
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import blockscale as bs
from blockscale import ops
from blockscale.ops import replay
from blockscale.runtime import load_replay, torch_private

LOADED = load_replay()
pytestmark = pytest.mark.skipif(isinstance(LOADED, str), reason=str(LOADED))
NAMES = tuple(each.name for each in ops.matmul._schema.arguments)


class Stub:
    """Stands for an op whose kernel and whose way through the dispatcher only say their names."""

    def __init__(self, known=None):
        self._schema = ops.matmul._schema
        self._op = lambda *arguments, **named: "dispatched"
        self.known = {} if known is None else known
        replay.skip_dispatcher(self, lambda *arguments: "kernel", self.known)

    def __call__(self, *arguments, **named):
        return self._op(*arguments, **named)


@pytest.fixture
def w():
    return bs.quantize(torch.randn(24, 64), bs.NVFP4).prepare()


@pytest.fixture
def arguments(w):
    x, biases = torch.randn(3, 64), [torch.randn(24)]
    return ops.op_arguments(
        ops.MatmulCall(ops.plain(x), [w.operand], biases, None, "", "", (), None, torch.float32)
    )


def changed(arguments, **named):
    return tuple(named.get(name, each) for name, each in zip(NAMES, arguments, strict=True))


def test_a_plain_call_goes_to_the_kernel(arguments):
    op = Stub()
    assert op(*arguments) == "kernel"
    with torch.no_grad():
        assert op(*changed(arguments, x=torch.nn.Parameter(arguments[0]))) == "kernel"
    with torch.inference_mode():
        assert op(*changed(arguments, x=torch.randn(3, 64))) == "kernel"


def test_the_profiler_sees_that_no_product_is_dispatched(arguments):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        ops.matmul(*arguments)
        with Quiet():
            ops.matmul(*arguments)
    names = [event.name for event in seen.events()]
    assert names.count("blockscale::matmul") == 1  # for the mode alone


class Quiet(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        return function(*arguments, **(named or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("mode", [Quiet, Functions, FakeTensorMode], ids=lambda each: each.__name__)
def test_modes_are_dispatched_to(arguments, mode):
    with mode():
        assert Stub()(*arguments) == "dispatched"


REMARKABLE = {
    "a gradient of x": lambda a: {"x": torch.nn.Parameter(a["x"])},
    "a gradient of a bias": lambda a: {"bias": torch.nn.Parameter(a["bias"])},
    "a subclass": lambda a: {"x": TwoTensor(a["x"], a["x"])},
    "a weight that is a subclass": lambda a: {"w": [TwoTensor(each, each) for each in a["w"]]},
    "another sign": lambda a: {"x": torch._neg_view(a["x"])},
    "another sign of a scale": lambda a: {"w": [*a["w"][:2], torch._neg_view(a["w"][2])]},
    "no memory": lambda a: {"x": a["x"].to("meta")},
    "weights without memory": lambda a: {"w": [each.to("meta") for each in a["w"]]},
    "a sparse x": lambda a: {"x": a["x"].to_sparse()},
    "something else": lambda a: {"text": object()},
}


@pytest.mark.parametrize("reason", REMARKABLE)
def test_arguments_are_left_to_the_dispatcher(arguments, reason):
    told = REMARKABLE[reason](dict(zip(NAMES, arguments, strict=True)))
    assert Stub()(*changed(arguments, **told)) == "dispatched"


def test_named_arguments_are_left_to_the_dispatcher(arguments):
    *rest, last = arguments
    assert Stub()(*rest, x_codebook=last) == "dispatched"


def test_transforms_and_traces_are_dispatched_to(arguments):
    op, found = Stub(), []
    _, *rest = arguments

    def call(x):
        found.append(op(x, *rest))
        return x.sum()

    torch.func.grad(call)(arguments[0])
    torch.func.vmap(call)(arguments[0])
    torch.func.functionalize(call)(arguments[0])
    for ahead in (False, True):
        make_fx(call, pre_dispatch=ahead)(arguments[0])
    assert found == ["dispatched"] * 5


def test_compiled_programs_hold_the_op(arguments):
    """And not what it calls."""
    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    run = torch.compile(lambda *each: ops.matmul(*each), backend=backend, fullgraph=True)
    assert torch.equal(run(*arguments), ops.matmul(*arguments))
    assert seen == ["blockscale.matmul.default"]


def test_an_error_of_the_kernel_is_told(arguments):
    with pytest.raises(ValueError, match="matmul: x has k=32 but w has k=64"):
        ops.matmul(*changed(arguments, x=torch.randn(3, 32)))


def test_arguments_that_are_no_product_s_are_refused():
    made = {"known": {}, "kernel": print, "dispatched": print, "questions": ()}
    with pytest.raises(ValueError, match="names of arguments that make no sense"):
        LOADED.OpCall(**made, names=(*NAMES[:-1], "other"))
    with pytest.raises(ValueError, match="questions"):
        LOADED.OpCall(**{**made, "questions": (1,)}, names=NAMES)
    assert Stub()() == "kernel"  # whose business the number of arguments is


def test_where_torch_cannot_be_asked_calls_are_dispatched(monkeypatch, arguments):
    monkeypatch.setattr(replay, "QUESTIONS", None)
    assert Stub()(*arguments) == "dispatched"


def test_ops_that_cannot_be_replaced_stay_as_they_are():
    torch_private.replace_op_call(object(), lambda call: pytest.fail("it calls something else"))


def test_what_it_holds_is_let_go():
    class Known(dict):
        pass

    known = Known()
    op = Stub(known)
    known["circle"] = op
    seen = weakref.ref(known)
    del op, known
    gc.collect()
    assert seen() is None
