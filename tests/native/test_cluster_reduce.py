"""Blocks of a cluster read of each other what they store and nothing more."""

import shutil
import subprocess
from pathlib import Path

import pytest

from blockscale.kernels.matmul import stream
from blockscale.runtime.cuda import FOLDER

SOURCE = Path(__file__).with_name("cluster_reduce.cpp")
# Any build, as a cluster of two; without warps that share k, which would have to meet.
DEFINES = {
    **dict(stream.every_build("sm_90a")[0].defines),
    "BS_CLUSTER": 1, "BS_SPLITS": 2, "BS_K_WARPS": 1, "BS_N_WARPS": 4, "BS_TILES_PER_WARP": 2,
    "BS_TILE_K": 256, "BS_WGMMA": 0, "BS_GATED": 0, "BS_RAGGED": 0,
}  # fmt: skip


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("columns", [8, 64])  # one quad of a thread at a time, or several
def test_no_load_is_left_behind(columns, tmp_path):
    defined = [f"-D{name}={value}" for name, value in {**DEFINES, "BS_TILE_M": columns}.items()]
    command = ["c++", "-std=c++20", "-O0", "-w", f"-I{FOLDER}", *defined, SOURCE]
    subprocess.run([*command, "-o", tmp_path / "reduce"], check=True)
    done = subprocess.run([tmp_path / "reduce"], capture_output=True, text=True)
    assert done.stdout.strip() == "right"
