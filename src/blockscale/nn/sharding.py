"""Weights of which each rank of a process group holds a part.

A module holds the bytes of its own part and multiplies by those alone; who cuts x and adds up the
results is somebody else's business (tensor parallelism of transformers, for one). What a module
has to know is how its part lies in the whole, because a state dict must not pass a part off as the
whole: there the bytes are DTensors, which say so, and which everything that gathers, saves or
redistributes knows.

Rows are cut anywhere and k at multiples of the block, so the parts of a weight concatenate to its
canonical bytes. A tensor scale and a codebook belong to all parts; experts, cut along their own
axis, keep one tensor scale each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from blockscale.formats import Format
from blockscale.tensor import QTensor, part_range

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Sharding(NamedTuple):
    """The whole of a weight, and along which axis the ranks of a one-dimensional mesh share it."""

    mesh: DeviceMesh
    axis: int  # of shape, counted from the front
    shape: tuple[int, ...]  # [n, k], or [e, n, k]

    def local_range(self, format: Format | None = None) -> tuple[int, int]:
        """Where this rank's part begins and how long it is; of a format, refused inside a block."""
        rank, ranks = self.mesh.get_local_rank(), self.mesh.size()
        return part_range(self.shape, self.axis, rank, ranks, format)

    def local_shape(self) -> tuple[int, ...]:
        """Of this rank's part."""
        return (*self.shape[: self.axis], self.local_range()[1], *self.shape[self.axis + 1 :])


def check_part(q: QTensor, sharding: Sharding) -> None:
    if q.shape != sharding.local_shape():
        raise ValueError(
            f"rank {sharding.mesh.get_local_rank()} of {sharding.mesh.size()} has "
            f"{list(sharding.local_shape())} of a weight {list(sharding.shape)} that is cut along "
            f"axis {sharding.axis}, got {list(q.shape)}"
        )


def as_dtensors(q: QTensor, sharding: Sharding) -> dict[str, Tensor]:
    """The canonical parts of q by field, each as a DTensor of the whole."""
    codes = q.layout.code_storage_shape(q.format, sharding.shape)
    scale = q.layout.scale_storage_shape(q.format, sharding.shape)
    found = {
        "codes": as_dtensor(q.codes, sharding, codes, cut=True),
        "scale": as_dtensor(q.scale, sharding, scale, cut=True),
    }
    if q.tensor_scale is not None:
        lead = sharding.shape[: q.tensor_scale.dim()]
        cut = sharding.axis < len(lead)
        found["tensor_scale"] = as_dtensor(q.tensor_scale, sharding, lead, cut=cut)
    if q.codebook is not None:
        found["codebook"] = as_dtensor(q.codebook, sharding, tuple(q.codebook.shape), cut=False)
    return found


def replicated(part: Tensor, sharding: Sharding) -> Tensor:
    """A tensor that every rank has, beside the parts of a weight."""
    return as_dtensor(part, sharding, tuple(part.shape), cut=False)


def shared_bias(bias: Tensor | None, sharding: Sharding | None) -> Tensor | None:
    """The bias [..., n] beside a weight that ranks share, as a DTensor: cut like the rows.

    bias   the whole, or this rank's part, or a DTensor already
    """
    if bias is None or sharding is None or hasattr(bias, "to_local"):
        return bias
    whole, axis = sharding.shape[:-1], sharding.axis
    cut = axis < len(whole)
    if cut and tuple(bias.shape) == whole:
        bias = bias.narrow(axis, *sharding.local_range())
    made = as_dtensor(bias.detach().clone(), sharding, whole, cut=cut)
    return nn.Parameter(made, requires_grad=bias.requires_grad)


def local(value: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor as it is."""
    to_local = getattr(value, "to_local", None)
    return value if to_local is None else to_local()


def as_dtensor(part: Tensor, sharding: Sharding, shape: tuple[int, ...], *, cut: bool) -> Tensor:
    """A part of `shape` that is cut along the axis of `sharding`; or all of it, which ranks have
    alike."""
    from torch.distributed.tensor import DTensor, Replicate, Shard  # half a second

    stride = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        stride[i] = stride[i + 1] * shape[i + 1]
    made: Tensor = DTensor.from_local(
        part.contiguous(),
        sharding.mesh,
        [Shard(sharding.axis) if cut else Replicate()],
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(stride),
    )
    return made
