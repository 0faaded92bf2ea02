"""Headers of the device code stand side by side, and those that Python writes are current."""

import shutil
import subprocess
from pathlib import Path

import pytest

from blockscale.kernels.cuda.headers import GENERATED, headers
from blockscale.runtime.cuda import FOLDER, Build, cubin, load_nvrtc

SOURCE = Path(__file__).with_name("every_header.cu")
HEADERS = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.cuh"))
ON_THE_HOST_ALONE = ("ptx/host.cuh", "ptx/host_twins.cuh")


@pytest.fixture
def including(tmp_path):
    """A header that includes these."""

    def write(names):
        path = tmp_path / "every.cuh"
        path.write_text("".join(f'#include "{name}"\n' for name in names), encoding="utf-8")
        return f'"{path}"'

    return write


def test_generated_headers_are_current():
    written = {path.name: path.read_text(encoding="utf-8") for path in GENERATED.iterdir()}
    assert written == headers(), "python -m blockscale.kernels.cuda.headers"


@pytest.mark.skipif(isinstance(load_nvrtc(), str), reason=str(load_nvrtc()))
def test_every_header_compiles_in_one_kernel(including):
    names = [name for name in HEADERS if name not in ON_THE_HOST_ALONE]
    build = Build(str(SOURCE), "every_header", (("INCLUDES", including(names)),))
    assert cubin(build, "sm_90a")


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("backwards", [False, True])
def test_every_header_compiles_on_the_host(backwards, including):
    names = sorted(HEADERS, reverse=backwards)
    command = ["c++", "-std=c++17", "-fsyntax-only", "-w", f"-I{FOLDER}", "-xc++", SOURCE]
    subprocess.run([*command, f"-DINCLUDES={including(names)}"], check=True)
