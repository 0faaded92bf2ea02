"""Runs cases of native.micro on a GPU and by the emulator.

A process of its own, since a launch that the hardware refuses ends all others of its process.

    python -m native.micro_on_gpu random_box 0 200      says which cases differ, and exits with 1
"""

import sys

import torch

from blockscale.runtime.cuda import current_stream, function
from blockscale.runtime.cuda.driver import context, load_driver
from native import micro


def by_gpu(case):
    device = torch.device("cuda", torch.cuda.current_device())
    with context(device.index):
        kernel = case.run(
            device, load_driver(), lambda build: function(build, device), current_stream(device)
        )
    torch.cuda.synchronize()
    return kernel


def main(maker, first, end):
    differ = 0
    for seed in range(int(first), int(end)):
        case = getattr(micro, maker)(seed)
        print(maker, seed, case.map, case.facts, flush=True)
        ours, theirs = case.run(), by_gpu(case)
        if not torch.equal(ours, theirs):
            differ += 1
            at = (ours != theirs).nonzero().flatten()
            print(f"DIFFERS in {len(at)} of {len(ours)} bytes, first at {at[0].item()}", flush=True)
    print(f"{differ} differ")
    return differ > 0


if __name__ == "__main__":
    torch.cuda.init()
    sys.exit(main(*sys.argv[1:]))
