"""ONNX Runtime's MatMulNBits: 4-bit integers, with x in float32 or rounded to int8 on the way.

Weights are constants of the model, since only these are packed for the CPU's kernels; so each copy
is a session. The sessions share one pool of threads: with a pool each, those of the last call would
still spin while the next one works.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bench.rivals.contract import Prepared, Rival, import_failure
from bench.rivals.int4 import BLOCK, OFFSET, Int4, quantize_int4
from bench.timing import Call

_FLOAT32, _INT8 = 1, 4  # ONNX Runtime's `accuracy_level`
_OPSET, _IR_VERSION = 21, 10


@dataclass(frozen=True)
class OnnxRuntime(Rival):
    int8: bool
    threads: int
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        return "onnxruntime int4" + (", int8 x" if self.int8 else "")

    @property
    def x_block(self) -> int | None:
        return 0 if self.int8 else None  # some of its kernels scale x by blocks, others by rows

    def missing(self) -> str:
        return import_failure("onnx", "onnxruntime")

    def prepare(self, w: Tensor) -> Session:
        quantized = quantize_int4(w, torch.float32)
        model = _model(quantized, w.shape, _INT8 if self.int8 else _FLOAT32)
        small = Int4(quantized.codes.to(torch.int8), quantized.scale)
        return Session(model, _session(model, self.threads), small, self.threads)


@dataclass(frozen=True)
class Session(Prepared):
    model: bytes
    session: Any
    unpacked: Int4
    threads: int

    @property
    def nbytes(self) -> int:
        return self.unpacked.codes.numel() // 2 + self.unpacked.scale.nbytes

    def copy(self) -> Session:
        session = _session(self.model, self.threads)
        return Session(self.model, session, self.unpacked, self.threads)

    def decoded(self) -> Tensor:
        return self.unpacked.decoded()

    def bind(self, x: Tensor) -> Call:
        feed = {"x": x.float().numpy()}
        return lambda: torch.from_numpy(self.session.run(None, feed)[0])


def _model(weight: Int4, shape: tuple[int, int], accuracy: int) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    n, k = shape
    pairs = (weight.codes + OFFSET).to(torch.uint8).view(n, k // BLOCK, BLOCK // 2, 2)
    constants = {
        "codes": pairs[..., 0] | pairs[..., 1] << 4,  # low nibble first
        "scale": weight.scale.flatten(),
    }
    node = helper.make_node(
        "MatMulNBits",
        ["x", *constants],
        ["y"],
        domain="com.microsoft",
        N=n,
        K=k,
        bits=4,
        block_size=BLOCK,
        accuracy_level=accuracy,
    )
    graph = helper.make_graph(
        [node],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", n])],
        [numpy_helper.from_array(value.numpy(), name) for name, value in constants.items()],
    )
    domains = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=_IR_VERSION)
    return model.SerializeToString()


def _session(model: bytes, threads: int) -> Any:
    import onnxruntime

    _share_threads(threads)
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@lru_cache(maxsize=1)
def _share_threads(threads: int) -> None:
    """Once in a process, before its first session."""
    import onnxruntime

    onnxruntime.set_global_thread_pool_sizes(threads, 1)
