"""Bytes of storage as words of 32 bits."""

from __future__ import annotations

import torch
from torch import Tensor


def as_words(storage: Tensor) -> Tensor:
    """int32 [..., bytes / 4]; a view at an odd address is copied: torch reads no word there."""
    storage = storage.contiguous()
    if storage.storage_offset() % 4 or storage.data_ptr() % 4:
        storage = storage.clone()
    return storage.view(torch.int32)
