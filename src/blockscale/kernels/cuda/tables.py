"""What kernels must know of the tables that decode a tensor, which lie on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from blockscale.formats import Float, parse_element
from blockscale.kernels.contract import Parts
from blockscale.numerics import cast

# Bytes of shared memory that a codebook takes there, a row for each byte of codes: see
# cuda/decode/shared_table.cuh.
SHARED_TABLE = 128 * 256

_known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # table -> (its state, symmetric)


def counted(weights: Sequence[Parts]) -> list[Tensor]:
    """The tensors whose changes in place are counted: those of inference mode have no version."""
    present = [tensor for part in weights for tensor in part if tensor is not None]
    return [tensor for tensor in present if not tensor.is_inference()]


def is_symmetric(table: Tensor) -> bool:
    """Whether the lower half of a frozen codebook mirrors its upper half: half a table decodes it
    then.

    The table is fetched at its first use, and again where its address or its version has changed.
    Only frozen tables may be asked about: others can change without either. A table first seen
    while a CUDA graph is captured, when nothing can be fetched, counts as any table, which is
    always right.
    """
    state = table.data_ptr(), None if table.is_inference() else table._version
    found = _known.get(table)
    if found is not None and found[0] == state:
        return bool(found[1])
    if torch.cuda.is_current_stream_capturing():
        return False
    values = table.detach().cpu()
    symmetric = torch.equal(values, -values.flip(0))
    _known[table] = state, symmetric
    return symmetric


@lru_cache(maxsize=64)
def float_table(element: str, device: torch.device) -> Tensor:
    """float32 values of every code of a float element."""
    described = parse_element(element)
    if not isinstance(described, Float):
        raise TypeError(f"{element} is no float: its table comes with the tensor")
    return cast(torch.tensor(described.values, dtype=torch.float64), torch.float32).to(device)
