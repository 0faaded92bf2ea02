"""A pytest plugin: memory of torch.empty comes from malloc, where the address sanitizer guards it.

Torch may have an allocator of its own (mimalloc, in its packages for aarch64), which no sanitizer
sees into. Packed weights and results are made by torch.empty.
"""

import numpy as np
import torch

_empty = torch.empty


def empty(*shape, dtype=None, device=None, **options):
    size = torch.Size(shape if not shape or isinstance(shape[0], int) else shape[0])
    if options or 0 in size or torch.device(device or "cpu").type != "cpu":
        return _empty(size, dtype=dtype, device=device, **options)
    dtype = dtype or torch.get_default_dtype()
    memory = np.empty(size.numel() * dtype.itemsize, np.uint8)
    return torch.from_numpy(memory).view(dtype).view(size)


torch.empty = empty
