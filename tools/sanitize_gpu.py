"""Every kind of CUDA kernel on small problems, for compute-sanitizer:

    python tools/sanitize_gpu.py                                    # compiles
    compute-sanitizer --tool memcheck --error-exitcode 1 python tools/sanitize_gpu.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python tools/sanitize_gpu.py

Results are tested elsewhere (tests/gpu); here only the tool's verdict counts.
"""

from __future__ import annotations

import torch

import blockscale as bs

SHAPE = (72, 448)  # neither is a multiple of what a block takes
ROWS = (1, 3, 8, 20, 70, 150)
FORMATS = (bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP8, bs.KBIT2, bs.KBIT3, bs.KBIT4, bs.KBIT5)


def main() -> None:
    torch.manual_seed(0)
    for format in FORMATS:
        source = torch.randn(*SHAPE, device="cuda")
        for rule in ("absmax", "mse"):
            bs.quantize(source, format, scale=rule)
        q = bs.quantize(source, format).prepare()
        q.dequantize(torch.bfloat16)
        for m in ROWS:
            x = torch.randn(m, SHAPE[1], device="cuda", dtype=torch.bfloat16)
            bs.matmul(x, q)
        x.requires_grad_()
        bs.matmul(x, q).sum().backward()  # the last rows: weights are transposed
    _verbs(bs.NVFP4)
    _verbs(bs.KBIT4)
    torch.cuda.synchronize()


def _verbs(format: bs.Format) -> None:
    n, k = SHAPE
    gate, up = (
        bs.quantize(torch.randn(4, n, k, device="cuda"), format).prepare() for _ in range(2)
    )
    small = bs.quantize(torch.randn(64, 4096, device="cuda"), format).prepare()
    for m in (2, 24, 150):  # clusters split k, of few rows and of many
        bs.matmul(torch.randn(m, 4096, device="cuda", dtype=torch.bfloat16), small)
    odd = bs.quantize(torch.randn(n, 416, device="cuda"), format).prepare()  # no whole panels of x
    bs.matmul(torch.randn(24, 416, device="cuda", dtype=torch.bfloat16), odd)
    for sizes in ([1, 0, 2, 1], [30, 0, 5, 60]):
        x = torch.randn(sum(sizes) + 3, k, device="cuda", dtype=torch.bfloat16)
        groups = torch.tensor(sizes, device="cuda")
        bs.grouped_matmul(x, gate, groups)
        bs.grouped_gated_matmul(x, gate, up, groups)
        leaf = x.clone().requires_grad_()
        bs.grouped_matmul(leaf, gate, groups).sum().backward()
    bs.gated_matmul(x[:20], gate[0], up[0])
    for rows in (3, 5):  # up to four, codes are decoded by the product itself
        bs.matmul(x[:rows], gate[0], x_format=format if format is bs.NVFP4 else bs.MXFP8)


if __name__ == "__main__":
    main()
