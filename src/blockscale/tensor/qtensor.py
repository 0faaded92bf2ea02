"""`QTensor`: a format and the bytes.

    x[..., r, c] = decode(code[..., r, c]) * scale[..., r, c // block] * tensor_scale[...]

A frozen container, not a `torch.Tensor` subclass: nothing that casts, moves or compiles tensors can
change what its bytes mean. It is born canonical (row-major codes and scales, what files hold and
what can be sliced); `prepare` packs it once into what a device's kernels read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Any, NoReturn

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import CATALOGUE, MXFP4, NVFP4, Format, activation_format
from blockscale.formats import format as find_format
from blockscale.layouts import Layout, atom_storage, canonical
from blockscale.layouts import layout as find_layout
from blockscale.numerics import check_rule, element_map, mxfp4_scales_to_nvfp4
from blockscale.problem import Kind
from blockscale.runtime import device_of, resolve_device
from blockscale.tensor.index import parse_index
from blockscale.tensor.storage import check_numbers, check_storage
from blockscale.tensor.views import as_bytes


@dataclass(frozen=True, eq=False, repr=False)
class QTensor:
    """A quantised tensor of logical shape [..., n, k]; made by `quantize` or `from_storage`.

    codes, scale   uint8 storage, as `layout` places it (F32 scales as their bytes)
    tensor_scale   float32, one per matrix (shape[:-2]) or one per row (shape[:-1]); None where the
                   format has none
    codebook       float32 [2^bits], the table that decodes; None for float elements
    frozen         whether its owner has promised what `freeze` says

    Its tensors may be written to in place, by torch or by anything that a stream or the host orders
    before the next product: products see it. They may also be moved to other memory of the same
    shape (`q.codes.data = ...`, `set_`). A CUDA graph reads the addresses that it captured: it sees
    what is written there, and must be captured again once memory has moved or was freed.
    """

    format: Format
    shape: tuple[int, ...]
    codes: Tensor
    scale: Tensor
    tensor_scale: Tensor | None
    codebook: Tensor | None
    layout: Layout
    frozen: bool = False

    def __post_init__(self) -> None:
        if not torch.compiler.is_compiling():  # there the op that made the parts has checked them
            check_storage(self.format, self.shape, self.layout, self._fields)

    @classmethod
    def from_storage(
        cls,
        format: Format | str,
        codes: Tensor,
        scale: Tensor,
        *,
        tensor_scale: Tensor | None = None,
        codebook: Tensor | None = None,
        layout: Layout | str | None = None,
    ) -> QTensor:
        """From bytes as they are, without a copy: codes [..., n, bytes], scale [..., n, bytes].

        A tensor scale or a codebook that is left out is 1, or the format's own table.

        layout   where the bytes sit, if not as files hold them. With "blocked", scale has the atoms
                 of each matrix, [..., bytes], or is the view [32, 4, rest_m, 4, rest_k, l] of them.
                 Codes and scales may have torch's float4 and float8 dtypes
        """
        format = find_format(format)
        codes, scale = as_bytes(codes), as_bytes(scale)
        if codes.dim() < 2:
            raise ValueError(f"codes must be [..., n, bytes], got shape {tuple(codes.shape)}")
        if tensor_scale is None and format.has_tensor_scale:
            tensor_scale = torch.ones(codes.shape[:-2], dtype=torch.float32, device=codes.device)
        if codebook is None and format.codebook:
            codebook = torch.tensor(format.codebook, dtype=torch.float32, device=codes.device)
        shape = (*codes.shape[:-1], codes.shape[-1] * 8 // format.element.bits)
        place = canonical(format) if layout is None else find_layout(layout, canonical(format))
        if place.codes not in ("bits", "planes"):
            raise ValueError(f"from_storage: codes are bits or planes, not {place.codes}")
        if place.scales == "blocked" and scale.dim() == 6:
            flat = atom_storage(scale, shape[-2], shape[-1] // format.block)
            scale = flat.view(*shape[:-2], flat.shape[-1])
        q = cls(format, shape, codes, scale, tensor_scale, codebook, place)
        check_numbers(format, tensor_scale, codebook)
        return q

    @classmethod
    def from_parts(cls, format: Format | str, parts: Mapping[str, Tensor]) -> QTensor:
        """From the tensors that hold it, by their roles (`Format.roles`): the inverse of `parts`.

        A codebook other than the format's makes it a format of its own.
        """
        format = find_format(format)
        if set(parts) != set(format.roles):
            raise ValueError(
                f"{format} is stored in {', '.join(format.roles)}, got {', '.join(parts)}"
            )
        if "codebook" in parts:
            changed = format.replace(codebook=parts["codebook"].tolist())
            format = next((each for each in CATALOGUE.values() if each == changed), changed)
        codes, scale = parts["codes"], parts["scale"]
        return cls.from_storage(
            format,
            codes,
            scale,
            tensor_scale=parts.get("tensor_scale"),
            codebook=parts.get("codebook"),
        )

    # --- facts -------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the codes: uint8, as of packed weights in other libraries. What x is cast to, or the
        result, is never this.
        """
        return self.codes.dtype

    @property
    def data(self) -> NoReturn:
        """Adapters add to this to merge themselves; what they would do cannot be done here."""
        raise AttributeError(
            f"a QTensor has no .data: its numbers are packed to {self.format}, and nothing can be "
            "added to them in place. To merge an adapter, merge it into the unquantised model and "
            "quantise that; or put it on the packed layers with blockscale.integrations.peft, "
            "which quantises what it merges anew; or keep it apart"
        )

    def numel(self) -> int:
        return prod(self.shape)

    @property
    def _fields(self) -> dict[str, Tensor | None]:
        names = ("codes", "scale", "tensor_scale", "codebook")
        return {name: getattr(self, name) for name in names}

    @property
    def tensors(self) -> list[Tensor]:
        """What there is of codes, scale, tensor_scale and codebook, in that order."""
        every = (self.codes, self.scale, self.tensor_scale, self.codebook)
        return [part for part in every if part is not None]

    @property
    def parts(self) -> dict[str, Tensor]:
        """The tensors that hold it, by their roles (`Format.roles`), in its layout."""
        return dict(zip(self.format.roles, self.tensors, strict=True))

    @property
    def nbytes(self) -> int:
        """Of everything, padding of the layout included."""
        return sum(part.nbytes for part in self.tensors)

    @property
    def bits_per_value(self) -> float:
        return 8 * self.nbytes / max(self.numel(), 1)

    @property
    def operand(self) -> ops.Operand:
        """This tensor as `torch.library` ops take it."""
        # Up to Python 3.11 a cached property has a lock, which torch.compile cannot enter.
        return self._as_operand() if torch.compiler.is_compiling() else self._operand

    @cached_property
    def _operand(self) -> ops.Operand:
        return self._as_operand()

    def _as_operand(self) -> ops.Operand:
        return ops.Operand(self.tensors, str(Kind(self.format, self.layout)), list(self.shape))

    @cached_property
    def plans(self) -> dict[Any, Any]:
        """Of calls with this tensor as the weight: see `ops.plan`, and `row_scales` beside this."""
        return {}

    @cached_property
    def replays(self) -> list[Any]:
        """Likewise: see `ops.replay`."""
        return []

    @cached_property
    def forwards(self) -> dict[Any, ops.Forward]:
        """Likewise, of calls under gradients: see `ops.gradients`."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles take the tensor alone, not what was found out about it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    # --- what it can become ------------------------------------------------------------------

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """cast(fp32(fp32(decode * scale) * tensor_scale)): the same bits on every device."""
        if dtype not in ops.FLOAT_DTYPES:
            raise TypeError(f"dequantize: dtype must be float32, bfloat16 or float16, got {dtype}")
        out: Tensor = ops.dequantize(*self.operand, dtype)
        return out

    def pack(self, layout: Layout | str) -> QTensor:
        """The same tensor placed otherwise: "blocked", "rows", "bits", "planes", or a pair."""
        target = find_layout(layout, self.layout)
        if target == self.layout:
            return self
        target.check(self.format, self.shape)
        codes, scale = ops.repack(
            self.codes, self.scale, self.format, self.shape, self.layout, target
        )
        return replace(self, codes=codes, scale=scale, layout=target, frozen=False)

    def prepare(
        self,
        device: torch.device | str | None = None,
        x_format: Format | str | None = None,
    ) -> QTensor:
        """On `device`, in the one layout that its kernels read, for every m.

        x_format   what x will be quantised to in products with it. Where the device's tensor cores
                   multiply such operands as they are, on Blackwell, scales are blocked for them

        Bytes that are packed here are nobody else's, and frozen (see `freeze`), but in inference
        mode, whose tensors count no writes.
        """
        moved = self if device is None else self.to(device)
        x = None if x_format is None else activation_format(x_format)
        packed = moved.pack(ops.prepared_layout(self.format, device_of(moved.device), x))
        if packed is moved:
            return packed
        if moved is self:
            packed = self._copy_what_is_shared(packed)
        return packed if packed.codes.is_inference() else packed.freeze()

    def _copy_what_is_shared(self, packed: QTensor) -> QTensor:
        """`packed` without memory of this tensor, whose bytes `pack` leaves where they are if both
        layouts place them alike."""

        def copied(part: Tensor | None, alike: bool = True) -> Any:
            if part is None or not alike:
                return part
            return part.clone(memory_format=torch.contiguous_format)

        return replace(
            packed,
            codes=copied(packed.codes, packed.layout.codes == self.layout.codes),
            scale=copied(packed.scale, packed.layout.scales == self.layout.scales),
            tensor_scale=copied(packed.tensor_scale),
            codebook=copied(packed.codebook),
        )

    def to(self, device: torch.device | str) -> QTensor:
        device = resolve_device(device)
        return self if device == self.device else self._each(lambda part: part.to(device))

    def clone(self) -> QTensor:
        """The same in memory of its own, aligned as kernels want it."""
        return self._each(lambda part: part.clone(memory_format=torch.contiguous_format))

    def _each(self, change: Callable[[Tensor], Tensor]) -> QTensor:
        return replace(
            self,
            codes=change(self.codes),
            scale=change(self.scale),
            tensor_scale=None if self.tensor_scale is None else change(self.tensor_scale),
            codebook=None if self.codebook is None else change(self.codebook),
            frozen=False,
        )

    def freeze(self) -> QTensor:
        """The same bytes, with the promise that only torch's own operations write to them from now
        on, outside of inference mode: nothing goes through `Tensor.data`, `numpy()` or a kernel of
        another library, none of which torch counts in `Tensor._version`.

        It is for whoever owns the bytes. `prepare` freezes what it packs, and so do modules of
        `blockscale.nn`.
        On GPUs from Hopper on, products read frozen weights before the kernel ahead in the stream
        has ended, and codebooks of 4 and 5 bits are decoded by half a table where the halves
        mirror each other. Of other weights every product waits for the kernel ahead.
        """
        return self if self.frozen else replace(self, frozen=True)

    def to_format(
        self, format: Format | str, *, requantize: bool = False, scale: str = "absmax"
    ) -> QTensor:
        """Without loss where that is possible: MXFP4 to NVFP4 while the block exponents of a matrix
        span at most 17, MXFP4 to MXFP6 and MXFP8. Otherwise an error, or with `requantize` a
        rounding of the dequantised values with the given scale rule.
        """
        target = find_format(format)
        if target == self.format:
            return self
        try:
            return _convert_exactly(self, target)
        except ValueError:
            if not requantize:
                raise
        check_rule(scale, target)
        canonical(target).check(target, self.shape)
        per_row = self.tensor_scale is not None and self.tensor_scale.dim() == len(self.shape) - 1
        return quantize_values(self.dequantize(), target, scale, None, per_row)

    # --- indexing, equality, printing ----------------------------------------------------------

    def __getitem__(self, index: Any) -> QTensor:
        """Leading dimensions by integer, slice or integer tensor, and new ones by None; rows and k
        by slice. Views, but for an integer tensor, which copies as torch's indexing does.

        Rows can be cut at the layout's granularity: anywhere in canonical bytes, at multiples of
        128 in blocked scales. k can be cut in canonical bytes, at multiples of the block (and of 32
        in bit planes); the part has the tensor scale of the whole, so its numbers are the whole's.
        """
        lead, rows, columns = parse_index(index, self.shape, self.layout, self.format)
        codes, scale, tensor_scale = self.codes[lead], self.scale[lead], self.tensor_scale
        whole = (*codes.shape[: codes.dim() - (self.codes.dim() - len(self.shape[:-2]))],)
        shape = (*whole, *self.shape[-2:])
        codes, scale = self.layout.slice_rows(codes, scale, self.format, shape, rows)
        if columns != slice(0, self.shape[-1]):
            codes, scale = self.layout.slice_k(codes, scale, self.format, columns)
        if tensor_scale is not None:
            per_row = tensor_scale.dim() == len(self.shape) - 1
            tensor_scale = tensor_scale[lead]
            tensor_scale = tensor_scale[..., rows] if per_row else tensor_scale
        shape = (*whole, rows.stop - rows.start, columns.stop - columns.start)
        return replace(self, shape=shape, codes=codes, scale=scale, tensor_scale=tensor_scale)

    def __eq__(self, other: object) -> bool:
        """The same format, shape and bits, wherever they sit."""
        if not isinstance(other, QTensor):
            return NotImplemented
        if self.format.spec != other.format.spec or self.shape != other.shape:
            return False
        place = canonical(self.format)
        mine, theirs = self.pack(place).tensors, other.to(self.device).pack(place).tensors
        return all(
            a.shape == b.shape and torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[QTensor]:
        if len(self.shape) < 3:
            raise TypeError("rows of a QTensor are not iterated: cut them, as in q[i : i + 1]")
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        parts = [
            f"{self.format} {list(self.shape)}",
            f"{self.bits_per_value:.4g} bits/value",
            f"{self.nbytes:,} bytes",
            f"layout {self.layout}",
            str(self.device),
        ]
        if self.tensor_scale is not None:
            one = self.tensor_scale.numel() == 1 and self.device.type == "cpu"
            value = f"{self.tensor_scale.item():.6g}" if one else list(self.tensor_scale.shape)
            parts.insert(1, f"tensor_scale {value}")
        if self.codebook is not None:
            parts.insert(1, f"codebook of {self.codebook.numel()}")
        return f"QTensor({', '.join(parts)})"


def quantize_values(
    x: Tensor,
    format: Format,
    rule: str,
    tensor_scale: Tensor | None,
    per_row: bool,
    importance: Tensor | None = None,
) -> QTensor:
    """x [..., n, k], canonical. The arguments have been checked: see `quantize`."""
    place = canonical(format)
    kind, table = str(Kind(format, place)), list(format.codebook)
    parts = ops.quantize(x, kind, table, rule, tensor_scale, per_row, importance)
    scalars = parts[2] if format.has_tensor_scale else None
    codebook = parts[-1] if format.is_codebook else None
    return QTensor(format, tuple(x.shape), parts[0], parts[1], scalars, codebook, place)


def _convert_exactly(q: QTensor, target: Format) -> QTensor:
    q = q.pack(canonical(q.format))
    codes = q.layout.unpack_codes(q.codes, q.format, q.shape)
    if q.format == MXFP4 and target == NVFP4:
        lead, matrices = q.shape[:-2], prod(q.shape[:-2])
        if not q.numel():
            return quantize_values(q.dequantize(), NVFP4, "absmax", None, per_row=False)
        scale, tensor_scale = mxfp4_scales_to_nvfp4(
            codes.reshape(matrices, *q.shape[-2:]), q.scale.reshape(matrices, *q.scale.shape[-2:])
        )
        scale = scale.reshape(*lead, *scale.shape[-2:])
        return QTensor.from_storage(NVFP4, q.codes, scale, tensor_scale=tensor_scale.reshape(lead))
    table = element_map(q.format, target)
    if table is None:
        raise ValueError(
            f"to_format: {q.format} has no lossless form in {target}: pass requantize=True to round"
        )
    codes = table.to(q.device)[codes.to(torch.int64)]
    packed = canonical(target).pack_codes(codes, target)
    return QTensor.from_storage(target, packed, q.scale, tensor_scale=q.tensor_scale)
