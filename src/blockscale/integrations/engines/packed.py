"""The weights of one fused linear layer: as few products as their formats allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as plain_linear

from blockscale.formats import Format
from blockscale.nn.packed import PackedModule
from blockscale.tensor import QTensor, cat, linear


class PackedLinear(PackedModule):
    """x @ weight.T + bias for rows that may be of several formats, or plain.

    q, k and v of one format and codebook are one weight, with a tensor scale per row where theirs
    differ, and one product. Others are multiplied one after the other.
    """

    def __init__(
        self, weights: Sequence[QTensor | Tensor], x_format: Format | str | None = None
    ) -> None:
        super().__init__()
        self.x_format = x_format
        self._rows: list[tuple[str, int, bool]] = []  # name, rows, whether it is packed
        for i, weight in enumerate(_joined(weights)):
            name = "weight" if i == 0 else f"weight{i}"
            self._rows.append((name, weight.shape[0], isinstance(weight, QTensor)))
            if isinstance(weight, QTensor):
                self._hold(name, weight)
            else:
                self.register_parameter(name, nn.Parameter(weight, requires_grad=False))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        results, start = [], 0
        for name, rows, is_packed in self._rows:
            part = bias
            if bias is not None and len(self._rows) > 1:
                part = bias[start : start + rows]
            if is_packed:
                (weight,) = self._prepared(name)
                results.append(linear(x, weight, part, x_format=self.x_format))
            else:
                results.append(plain_linear(x, getattr(self, name), part))
            start += rows
        return results[0] if len(results) == 1 else torch.cat(results, -1)


def _joined(weights: Sequence[QTensor | Tensor]) -> Iterator[QTensor | Tensor]:
    """Neighbours that `cat` puts together as one."""
    for kind, members in groupby(weights, key=_kind):
        if kind is None:
            yield torch.cat([each for each in members if isinstance(each, Tensor)])
        else:
            yield cat([each for each in members if isinstance(each, QTensor)])


def _kind(weight: QTensor | Tensor) -> tuple[str, tuple[float, ...]] | None:
    """A format without its codebook, and the codebook, of which a tensor has one."""
    if not isinstance(weight, QTensor):
        return None
    table = () if weight.codebook is None else tuple(weight.codebook.tolist())
    return weight.format.spec, table


class Memory:
    """The memory of a module's weights, which CUDA graphs may have captured.

    An engine may take the buffers of all modules away while it loads weights anew, and put the
    same ones back at the end, so they are remembered here.
    """

    def __init__(self, module: PackedModule) -> None:
        self._weights, self._plain = module.qtensors(), dict(module.named_parameters())

    @torch.no_grad()
    def overwrite(self, fresh: PackedModule) -> None:
        """With the bytes of a module that is built alike."""
        fresh.prepare()
        for name, new in fresh.qtensors().items():
            held = self._weights[name]
            if held.format != new.format or held.shape != new.shape:
                raise ValueError(f"a reload cannot turn {held} into {new}: start the server again")
            for mine, its in zip(held.tensors, new.tensors, strict=True):
                mine.copy_(its)
        for name, parameter in fresh.named_parameters():
            self._plain[name].copy_(parameter)
