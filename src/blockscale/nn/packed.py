"""Modules whose weights are QTensors.

Each weight is held in up to four buffers, named after it: `weight_codes`, `weight_scale` (uint8),
`weight_tensor_scale`, `weight_codebook` (float32; only where the format has them). Buffers, because
everything that moves, counts, shares or compiles modules knows them. Three things are special:

- The bytes are moved and never cast: `.to(torch.bfloat16)` would round the float32 parts, so
  `_apply` shows every function their bytes instead of their numbers.
- The first use on a device packs the bytes into what its kernels read, and only those are kept.
  Other CUDA streams wait for the packing before they read them (handover.py).
- A state dict has the canonical bytes, whatever the module holds, and the format under the name of
  the weight; see `labels`. Of a weight that ranks share it has DTensors; see `sharding`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from blockscale import ops
from blockscale.formats import INT8, Format, activation_format
from blockscale.formats import format as find_format
from blockscale.layouts import Layout, canonical
from blockscale.nn.handover import Handover, keep_until_read, refuse_capture
from blockscale.nn.labels import label_name, read_label, write_label
from blockscale.nn.sharding import Sharding, as_dtensors, check_part, local, replicated
from blockscale.runtime import device_of
from blockscale.runtime.torch_private import outside_transforms
from blockscale.tensor import QTensor

_Method = TypeVar("_Method", bound=Callable[..., Any])
FIELDS = ("codes", "scale", "tensor_scale", "codebook")
# Of all modules, since locks cannot be pickled: packing happens once, and buffers change together.
_changing = threading.RLock()


class _Meaning(NamedTuple):
    """What the buffers of a weight do not say themselves."""

    format: Format
    shape: tuple[int, ...]
    layout: Layout
    frozen: bool  # packed here: nobody else has the memory


def _while_tracing(method: _Method) -> _Method:
    """A compiler runs it while it traces, on the module itself, and traces what comes of it.

    This is torch.compiler.assume_constant_result, which would import the compiler to say so.
    """
    method._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return method


class _Made(NamedTuple):
    meaning: _Meaning  # what it was made from, with the buffers
    q: QTensor
    ready: bool  # in the layout of its device's kernels
    handover: Handover | None = None  # where it was packed by this module, on a CUDA stream

    def use_here(self) -> QTensor:
        if self.handover is not None:
            self.handover.use_here()
        return self.q


class _Names(dict[str, tuple[str, ...]]):
    """Of the buffers of a weight."""

    def __missing__(self, name: str) -> tuple[str, ...]:
        self[name] = tuple(f"{name}_{field}" for field in FIELDS)
        return self[name]


_BUFFERS = _Names()


class PackedModule(nn.Module):
    """Holds QTensors by name: `_hold` takes one, `_held` gives it back, `_prepared` ready to use.

    What `_held` gives is never written to: a change of place or a load makes new buffers.
    """

    x_format: Format | str | None = None  # what inputs are quantised to

    def __init__(self) -> None:
        super().__init__()
        self._meanings: dict[str, _Meaning] = {}
        self._made: dict[str, _Made] = {}
        self._shardings: dict[str, Sharding] = {}  # of weights that ranks share

    def _hold(self, name: str, q: QTensor, handover: Handover | None = None) -> None:
        """In one step, so that neither a signal nor a thread comes between two of the changes. New
        dicts, since replicas of a module share the old."""
        for key in _BUFFERS[name]:
            if key not in self._buffers:
                self.register_buffer(key, None)
        meaning = _Meaning(q.format, q.shape, q.layout, q.frozen)
        with _changing:
            made = {other: each for other, each in self._made.items() if other != name}
            if handover is not None:
                made[name] = _Made(meaning, q, ready=True, handover=handover)
            parts = {
                key: getattr(q, field) for key, field in zip(_BUFFERS[name], FIELDS, strict=True)
            }
            self.__dict__.update(
                _buffers={**self._buffers, **parts},
                _meanings={**self._meanings, name: meaning},
                _made=made,
            )

    def shard_over(self, shardings: Mapping[str, Sharding]) -> None:
        """Say of weights that they are this rank's part of a whole, and of which."""
        for name, sharding in shardings.items():
            check_part(self._held(name), sharding)
        self._shardings = dict(shardings)

    @property
    def is_sharded(self) -> bool:
        """Whether ranks share its weights."""
        return bool(self._shardings)

    def qtensors(self) -> dict[str, QTensor]:
        """The weights by name, as they are held."""
        return {name: self._held(name) for name in self._meanings}

    def _held(self, name: str) -> QTensor:
        if torch.compiler.is_compiling():
            return self._make(name)
        return self._known(name).use_here()

    def _known(self, name: str) -> _Made:
        """The same object while its parts are: a tensor keeps what calls find out about it."""
        made = self._still_made(name)
        if made is None:
            with _changing:
                meaning, q = self._meanings[name], self._make(name)
                x = None if self.x_format is None else activation_format(self.x_format)
                ready = q.layout == ops.prepared_layout(q.format, device_of(q.device), x)
                made = _Made(meaning, q, ready)
                self._made = {**self._made, name: made}  # a new dict, as in `_hold`
        return made

    def _still_made(self, name: str) -> _Made | None:
        made = self._made.get(name)
        if made is None:
            return None
        q, buffers = made.q, self._buffers
        codes, scale, tensor_scale, codebook = _BUFFERS[name]
        same = (
            made.meaning is self._meanings[name]
            and q.codes is buffers.get(codes)
            and q.scale is buffers.get(scale)
            and q.tensor_scale is buffers.get(tensor_scale)
            and q.codebook is buffers.get(codebook)
        )
        return made if same else None

    def _make(self, name: str) -> QTensor:
        format, shape, layout, frozen = self._meanings[name]
        codes, scale, tensor_scale, codebook = (getattr(self, f"{name}_{f}") for f in FIELDS)
        return QTensor(format, shape, codes, scale, tensor_scale, codebook, layout, frozen)

    def _prepared(self, *names: str) -> list[QTensor]:
        """The weights in the layout of their device's kernels; the first time, they are packed.

        An exported program may run elsewhere: it gets what is held, and every kernel reads that.
        """
        if torch.compiler.is_compiling():
            self._prepare_to_compile()
            return [self._held(name) for name in names]
        ready = []
        for name in names:
            made = self._still_made(name)
            if made is None or not made.ready:
                self.prepare()  # one thread at a time
                return [self._held(name) for name in names]
            ready.append(made.use_here())
        return ready

    @_while_tracing  # which asks torch itself: traced, torch 2.11 answers that it always exports
    def _prepare_to_compile(self) -> None:
        if not torch.compiler.is_exporting():
            self.prepare()
            for made in self._made.values():  # what is compiled reads buffers and asks nobody
                if made.handover is not None:
                    made.handover.wait_on_host()

    @_while_tracing
    def prepare(self) -> None:
        """Pack the weights for the device they are on. The first forward does this by itself."""
        # Under inference_mode the new buffers could never take part in training, and under a
        # transform of torch.func they would end with it.
        with _changing, torch.inference_mode(mode=False), torch.no_grad(), outside_transforms():
            for name, q in self.qtensors().items():
                if self._known(name).ready:
                    continue
                refuse_capture(q.device)
                ready, handover = q.prepare(x_format=self.x_format), None
                if q.device.type == "cuda":
                    keep_until_read(q.tensors, q.device)
                    handover = Handover(ready.tensors, q.device)
                self._hold(name, ready, handover)

    def _use_here(self) -> None:
        for made in self._made.values():
            made.use_here()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles take the bytes alone, and find out again what was known of them."""
        self._use_here()
        return {**self.__dict__, "_made": {}}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self._use_here()
        self._made = {}  # else the bytes would stay where they were, too
        buffers = (self._buffers[f"{name}_{field}"] for name in self._meanings for field in FIELDS)
        ours = {id(buffer) for buffer in buffers}
        return super()._apply(lambda t: _move(t, fn) if id(t) in ours else fn(t), recurse)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, (format, *_) in self._meanings.items():
            q = self._held(name).pack(canonical(format))
            parts: dict[str, Tensor | None] = {field: getattr(q, field) for field in FIELDS}
            label, sharding = write_label(format, q.device), self._shardings.get(name)
            if sharding is not None:
                parts, label = {**as_dtensors(q, sharding)}, replicated(label, sharding)
            for field, part in parts.items():
                if part is not None:
                    destination[f"{prefix}{name}_{field}"] = part
            destination[f"{prefix}{label_name(name)}"] = label

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for name, (format, *_) in self._meanings.items():
            error_msgs += _misnamed(prefix + name, state_dict, format)
            every = [f"{name}_{field}" for field in FIELDS]
            present = [key for key in every if prefix + key in state_dict]
            for key in present:
                given, held = local(state_dict[prefix + key]), self._buffers[key]
                state_dict[prefix + key] = given
                if held is not None and given.dtype != held.dtype:
                    error_msgs.append(f"{prefix}{key} must be {held.dtype}, got {given.dtype}")
            if present:  # what is held may be another's too: load into a copy
                self._hold(name, self._held(name).pack(canonical(format)).clone())
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )


def as_autocast(x: Tensor) -> Tensor:
    """In the dtype that `torch.autocast` asks products for, where it is on, as in torch's own."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # which knows no meta tensors
        return x
    return x if x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(kind))


def _misnamed(name: str, state_dict: dict[str, Any], format: Format) -> list[str]:
    """Takes the label of a weight out of a state dict; an error if it names another format."""
    stored = state_dict.pop(label_name(name), None)
    if stored is None or stored.is_meta:
        return []
    try:
        saved = read_label(local(stored))
    except ValueError as error:
        return [f"{name} is packed here: {error}"]
    if saved.spec == format.spec:
        return []
    return [f"{name} was saved as {saved.spec}, this module holds {format.spec}"]


def blank(
    format: Format | str, shape: tuple[int, ...], device: torch.device | str | None
) -> QTensor:
    """Every byte zero, to be loaded into."""
    format = find_format(format)
    layout = canonical(format)
    layout.check(format, shape)
    codes, scale = (
        torch.zeros(storage, dtype=torch.uint8, device=device)
        for storage in (
            layout.code_storage_shape(format, shape),
            layout.scale_storage_shape(format, shape),
        )
    )
    return QTensor.from_storage(format, codes, scale)


def as_parameter(bias: Tensor | None) -> nn.Parameter | None:
    """A parameter stays the object it is, so that an optimiser which has it keeps training it."""
    if bias is None or isinstance(bias, nn.Parameter):
        return bias
    return nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)


def known_x_format(x_format: Format | str | None, *widths: int) -> Format | str | None:
    """Looked up and checked when the module is made, rather than when it first runs."""
    if x_format is None:
        return None
    format = activation_format(x_format)
    for k in widths:
        ops.check_block("x_format", "x", k, format)
    return "int8" if format == INT8 else format


def _move(part: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """fn's effect on the place of a tensor, without its effect on the numbers."""
    raw = part.reshape(-1).view(torch.uint8)
    moved = fn(raw)
    if moved.dtype != torch.uint8:  # module.type(dtype) casts whatever it meets
        moved = raw.to(moved.device)
    return moved.view(part.dtype).reshape(part.shape)
