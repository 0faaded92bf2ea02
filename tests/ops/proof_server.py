"""Run by `test_proof.py`: a server of proofs with kernels that hang, crash and find no
memory."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from planted import Planted, greedy

from blockscale.kernels import KERNELS
from blockscale.ops.proof import server


def hangs(problem, weights, tensors, run):
    while True:
        time.sleep(1)


def crashes(problem, weights, tensors, run):
    os.abort()


print("what another library prints")
KERNELS["matmul"] = (
    Planted("right"),
    Planted("hangs", hangs),
    Planted("crashes", crashes),
    Planted("greedy", greedy),
)
server.main(sys.argv[1])
