"""Parts of a tensor and the whole of parts, in canonical bytes: nothing is decoded or rounded.

`shard` is what one rank of several holds, `cat` puts parts together. Rows are cut anywhere. Blocks
run along k and each has one scale, so k is cut at whole blocks. A tensor scale and a codebook
belong to the whole, and parts keep them. Matrices with different tensor scales can still be one: a
tensor scale per row says the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockscale.formats import Format
from blockscale.layouts import canonical
from blockscale.tensor.qtensor import QTensor


def shard(q: QTensor, axis: int, rank: int, size: int) -> QTensor:
    """What rank `rank` of `size` holds of q, cut along `axis`: a view.

    Parts are of ceil(length / size), as `torch.chunk` and DTensor make them.
    """
    dims = len(q.shape)
    if not -dims <= axis < dims:
        raise IndexError(f"shard: axis {axis} of a tensor of {dims} dimensions")
    if not 0 <= rank < size:
        raise ValueError(f"shard: rank must be from 0 to {size - 1}, got {rank}")
    start, length = part_range(q.shape, axis % dims, rank, size, q.format)
    index: list[slice] = [slice(None)] * dims
    index[axis] = slice(start, start + length)
    return q[tuple(index)]


def part_range(
    shape: Sequence[int], axis: int, rank: int, size: int, format: Format | None
) -> tuple[int, int]:
    """Where a rank's part of an axis begins, and its length.

    format   None: of a plain tensor, which can be cut anywhere
    """
    whole = shape[axis]
    part = -(-whole // size)
    if part * (size - 1) >= whole:
        raise ValueError(
            f"{size} ranks cannot share {whole} along axis {axis} in parts of {part}: use at most "
            f"{whole} ranks, and a divisor of {whole} for parts alike"
        )
    if format is not None and axis == len(shape) - 1:
        multiple = canonical(format).k_granularity(format)
        if part % multiple:
            raise ValueError(
                f"k={whole} over {size} ranks is {part} columns each, which cuts the blocks of "
                f"{format} (multiples of {multiple}): use {_fitting(whole // multiple, size)} "
                "ranks, or a format with smaller blocks"
            )
    start = part * rank
    return start, min(whole, start + part) - start


def _fitting(blocks: int, most: int) -> int:
    """The largest number of ranks up to `most` that share so many blocks alike."""
    return next(ranks for ranks in range(min(most, blocks), 0, -1) if blocks % ranks == 0)


def cat(tensors: Sequence[QTensor], dim: int = -2) -> QTensor:
    """The tensors, one after the other along `dim`, in bytes of their own.

    All must be canonical, of one format and alike in every other dimension. Along leading
    dimensions each matrix keeps its tensor scale. Along rows they keep one where it is the same for
    all, and else have one per row, which `matmul` and `linear` take. Along k it must be the same.
    Codebooks must be the same everywhere.
    """
    if not tensors:
        raise ValueError("cat: there is nothing to put together")
    first, dims = tensors[0], len(tensors[0].shape)
    if not -dims <= dim < dims:
        raise IndexError(f"cat: dim {dim} of tensors of {dims} dimensions")
    dim %= dims
    for i, q in enumerate(tensors):
        _check_alike(i, q, first, dim)
    shape = (*first.shape[:dim], sum(q.shape[dim] for q in tensors), *first.shape[dim + 1 :])
    return QTensor(
        first.format,
        shape,
        torch.cat([q.codes for q in tensors], dim),
        torch.cat([q.scale for q in tensors], dim),
        _tensor_scale(tensors, dim),
        None if first.codebook is None else first.codebook.clone(),
        first.layout,
    )


def _check_alike(i: int, q: QTensor, first: QTensor, dim: int) -> None:
    if q.format.spec != first.format.spec:
        raise ValueError(f"cat: tensor 0 is {first.format} and tensor {i} is {q.format}")
    place = canonical(q.format)
    if q.layout != place:
        raise ValueError(
            f"cat: tensor {i} is in layout {q.layout}: put canonical bytes together, as "
            f"q.pack({str(place)!r}), and prepare the whole"
        )
    sizes = [(a, b) for j, (a, b) in enumerate(zip(first.shape, q.shape, strict=False)) if j != dim]
    if len(q.shape) != len(first.shape) or any(a != b for a, b in sizes):
        raise ValueError(
            f"cat: tensor 0 is {list(first.shape)} and tensor {i} is {list(q.shape)}, which differ "
            f"elsewhere than in dimension {dim}"
        )
    if q.device != first.device:
        raise ValueError(f"cat: tensor 0 is on {first.device} and tensor {i} on {q.device}")
    if q.codebook is not None and not torch.equal(q.codebook, _present(first.codebook)):
        raise ValueError(
            f"cat: tensors 0 and {i} have different codebooks, and a tensor has one: quantise them "
            "with one, or multiply by each apart"
        )


def _tensor_scale(tensors: Sequence[QTensor], dim: int) -> Tensor | None:
    if tensors[0].tensor_scale is None:
        return None
    scales, rows = [_present(q.tensor_scale) for q in tensors], len(tensors[0].shape) - 2
    mixed = any(scale.dim() != scales[0].dim() for scale in scales)
    if dim == rows and (mixed or any(not torch.equal(scale, scales[0]) for scale in scales)):
        pairs = zip(tensors, scales, strict=True)
        scales = [s if s.dim() > rows else s[..., None].expand(q.shape[:-1]) for q, s in pairs]
        return torch.cat(scales, dim)
    if mixed:
        raise ValueError("cat: some tensors have a tensor scale per row, and others one per matrix")
    if dim < scales[0].dim():
        return torch.cat(scales, dim)
    for i, scale in enumerate(scales):
        if not torch.equal(scale, scales[0]):
            raise ValueError(
                f"cat: tensors 0 and {i} have different tensor scales ({_shown(scales[0])} and "
                f"{_shown(scale)}), and a row has one: quantise all with one tensor_scale=, or "
                "multiply by each apart"
            )
    return scales[0].clone()


def _shown(scale: Tensor) -> str:
    return f"{scale.item():.9g}" if scale.numel() == 1 else f"{list(scale.shape)}"


def _present(part: Tensor | None) -> Tensor:
    if part is None:
        raise TypeError("a part of the format is missing")  # QTensor has checked
    return part
