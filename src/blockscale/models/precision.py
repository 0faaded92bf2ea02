"""Which dtype a machine computes in without emulation."""

from __future__ import annotations

import torch

from blockscale.runtime import emulates_bfloat16

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def best_dtype(wanted: torch.dtype, device: torch.device | str) -> torch.dtype:
    """The dtype that is wanted, or float32 where the device would emulate it."""
    halves = (torch.bfloat16, torch.float16)
    return torch.float32 if wanted in halves and emulates_bfloat16(device) else wanted


def parse_dtype(name: str | None) -> torch.dtype | None:
    """ "bfloat16" -> torch.bfloat16; None stays None."""
    if name is None:
        return None
    if name not in _DTYPES:
        raise ValueError(f"--dtype {name}: use one of {', '.join(_DTYPES)}")
    return _DTYPES[name]
