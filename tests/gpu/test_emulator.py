"""The emulator against a Hopper GPU: the same small kernels with random boxes and descriptors.

Every byte must agree. Skipped where there is no such GPU or no C++ compiler.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.skipif(not IS_HOPPER, reason="no Hopper GPU"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]
TESTS = Path(__file__).parents[1]
CASES = {
    "random_box": 200,
    "random_product": 120,
    "random_fragments": 20,
    "ring": 8,
    "passing_on": 8,
}


@pytest.mark.parametrize("maker", CASES)
def test_the_same_bytes(maker):
    """In a process of its own: a launch that the hardware refuses ends all others there."""
    paths = [str(TESTS), str(TESTS.parent / "src"), *sys.path]
    done = subprocess.run(
        [sys.executable, "-m", "native.micro_on_gpu", maker, "0", str(CASES[maker])],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    said = [line for line in done.stdout.splitlines()[-6:] if line] + done.stderr.splitlines()[-3:]
    assert done.returncode == 0, "\n".join(said)
