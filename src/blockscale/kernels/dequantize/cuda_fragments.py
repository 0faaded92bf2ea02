"""CUDA that gives the bits of the definition, from weights in the order of mma fragments:
cuda/kernels/dequantize_fragments.cu."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.cuda.enums import Dtype, Scale
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.cuda.rows import aligned, aligned_numbers, launches_of
from blockscale.kernels.cuda.structs import Header, Member, fields
from blockscale.kernels.cuda.tables import float_table
from blockscale.problem import Problem, dtype_name, parse_kind
from blockscale.runtime.cuda import Build, cuda_refusal, current_stream, function

__all__ = ["NAME", "Decoding", "bind", "configs", "decode", "decoder", "reads", "refuses"]

NAME = "cuda_fragments"
reads = reads_canonical

_WARPS = 8
_WORD = 4  # bytes of codes, scales and tables that a lane reads at a time


class DequantizeFragmentsArguments(Structure):
    HEADER = Header("dequantize_fragments_arguments", "decode")
    MEMBERS = (
        Member("const u8*", "codes", "of the first tile"),
        Member("const u8*", "scale"),
        Member("const float*", "table", "of all codes"),
        Member("const float*", "tensor_scale", "one per row, or null"),
        Member("void*", "out", "[groups, rows, k], 16-byte aligned rows"),
        Member("long long", "code_stride", "bytes between groups"),
        Member("long long", "scale_stride", "bytes between groups"),
        Member("long long", "out_row", "elements between rows"),
        Member("long long", "out_group", "elements between groups"),
        Member("long long", "tensor_scale_row", "elements between rows"),
        Member("long long", "tensor_scale_group", "elements between groups"),
        Member("int", "rows"),
        Member("int", "k"),
    )
    _fields_ = fields(MEMBERS)


@dataclass(frozen=True)
class Config(BaseConfig):
    def __str__(self) -> str:
        return "a warp to 16 rows and k=64"


def refuses(problem: Problem) -> str | None:
    if refusal := cuda_refusal(problem.device):
        return refusal
    format, layout = problem.w_kind
    if layout != fragments(format):
        return f"reads fragments; not {layout}"
    return None


def configs(problem: Problem) -> list[Config]:
    return [Config()]


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(
        partial(_run, problem, weights), builds=lambda: [decoder(problem.w, problem.out)]
    )


def _run(problem: Problem, weights: tuple[Parts, ...], out: Tensor) -> None:
    decode(problem.w, weights[0], out)


def decode(kind: str, parts: Parts, out: Tensor) -> None:
    """Rows of any panel that starts at a tile."""
    written = aligned(out)
    for some in launches_of(len(out)):
        into = written[some]
        Decoding(kind, parts.cut(some), into.shape, out.dtype)(into)
    if written is not out:
        out.copy_(written)


class Decoding:
    """A launch on some parts, of at most rows.MOST_MATRICES, with everything found out but where
    the numbers go. It has the addresses of the parts, which whoever calls keeps alive."""

    def __init__(self, kind: str, parts: Parts, shape: Sequence[int], dtype: torch.dtype) -> None:
        groups, n, k = shape
        self._shape, self._dtype, self._device = (groups, n, k), dtype, parts.codes.device
        codes, scale = (_adjacent_tiles(part) for part in (parts.codes, parts.scale))
        if parts.codebook is None:
            table = float_table(parse_kind(kind).format.element.name, self._device)
        else:
            table = aligned(parts.codebook, _WORD)
        scaled = None if parts.tensor_scale is None else aligned_numbers(parts.tensor_scale)
        placed = codes, scale, table, scaled
        self._copies = [new for new, old in zip(placed, parts, strict=True) if new is not old]
        self.copies_weights = codes is not parts.codes or scale is not parts.scale
        self._template = bytes(
            DequantizeFragmentsArguments(
                codes=codes.data_ptr(),
                scale=scale.data_ptr(),
                table=table.data_ptr(),
                tensor_scale=None if scaled is None else scaled.data_ptr(),
                code_stride=codes.stride(0),
                scale_stride=scale.stride(0),
                tensor_scale_row=0 if scaled is None else scaled.stride(1),
                tensor_scale_group=0 if scaled is None else scaled.stride(0),
                rows=n,
                k=k,
            )
        )
        self._grid = -(-n // 16), -(-k // (64 * _WARPS)), groups  # rows may be the most
        self._kernel = function(decoder(kind, dtype_name(dtype)), self._device)

    def __call__(self, out: Tensor) -> None:
        """out [groups, n, k], with rows of adjacent numbers that start at multiples of 16 bytes."""
        arguments = DequantizeFragmentsArguments.from_buffer_copy(self._template)
        arguments.out, strides = out.data_ptr(), out.stride()
        arguments.out_group, arguments.out_row = strides[0], strides[1]
        stream = current_stream(self._device)
        self._kernel.launch(self._grid, 32 * _WARPS, 0, stream, arguments)

    def fresh(self) -> Tensor:
        """In memory of its own: k is a multiple of 16, so rows start where they must."""
        out = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        self(out)
        return out


def _adjacent_tiles(storage: Tensor) -> Tensor:
    adjacent = storage.stride(-1) == 1 and storage.stride(-2) == storage.shape[-1]
    aligned_groups = storage.data_ptr() % _WORD == 0 and storage.stride(0) % _WORD == 0
    if adjacent and aligned_groups:
        return storage
    return storage.clone(memory_format=torch.contiguous_format)


@lru_cache(maxsize=1024)
def decoder(kind: str, dtype: str) -> Build:
    """What `decode` loads."""
    format, layout = parse_kind(kind)
    defines: dict[str, str | int] = {
        "BS_SCALE": Scale[format.scale.name.upper()].name,
        "BS_BITS": format.element.bits,
        "BS_BLOCK": format.block,
        "BS_FOLDED": int(layout.codes == "folded"),
        "BS_DTYPE": Dtype[dtype.upper()].name,
    }
    return Build("dequantize_fragments.cu", "dequantize_fragments", tuple(defines.items()))
