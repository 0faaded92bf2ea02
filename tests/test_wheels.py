"""What goes into the wheels, without the compilers that make their native libraries."""

import csv
import platform
import runpy
import sys
import zipfile
from base64 import urlsafe_b64encode
from hashlib import sha256

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from blockscale.runtime import native_library
from tools import wheels

ABOUT = "blockscale-1.2.3.dist-info"
PURE = {
    "blockscale/__init__.py": "__version__ = '1.2.3'\n",
    "blockscale/runtime/__init__.py": "",
    f"{ABOUT}/METADATA": "Metadata-Version: 2.1\nName: blockscale\nVersion: 1.2.3\n",
    f"{ABOUT}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n",
    f"{ABOUT}/RECORD": "stale,,\n",
}
COMPILED_HERE = "blockscale/runtime/_replay.abi3.so"  # as a developer's source tree has it
PLATFORMS = {"Linux": "linux", "Darwin": "darwin", "Windows": "win32"}  # as sys.platform says
LIBRARY = b"\x7f native code"


@pytest.fixture
def pack(tmp_path):
    pure = tmp_path / "blockscale-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(pure, "w") as made:
        for name, content in PURE.items():
            made.writestr(name, content)
        made.writestr(COMPILED_HERE, "code of another machine")
    library = tmp_path / "compiled"
    library.write_bytes(LIBRARY)
    dist = tmp_path / "dist"
    dist.mkdir()
    return lambda target: wheels.pack(pure, wheels.TARGETS[target], library, dist)


@pytest.mark.parametrize("name", wheels.TARGETS)
def test_a_wheel_holds_the_library_and_names_its_system(pack, name):
    target = wheels.TARGETS[name]
    made = pack(name)
    assert made.name == f"blockscale-1.2.3-py3-none-{target.tag}.whl"
    *_, tags = parse_wheel_filename(made.name)
    with zipfile.ZipFile(made) as file:
        names = file.namelist()
        assert file.read(f"blockscale/runtime/{target.library}") == LIBRARY
        about = file.read(f"{ABOUT}/WHEEL").decode().splitlines()
    assert set(names) == {*PURE, f"blockscale/runtime/{target.library}"}
    assert len(set(names)) == len(names)
    assert [line for line in about if line.startswith("Tag:")] == [f"Tag: {tag}" for tag in tags]
    assert [line for line in about if line.startswith("Root-")] == ["Root-Is-Purelib: false"]
    assert "" not in about  # a blank line ends the fields


def test_the_record_has_the_hash_and_the_size_of_every_file(pack):
    with zipfile.ZipFile(pack("linux-x86_64")) as file:
        lines = list(csv.reader(file.read(f"{ABOUT}/RECORD").decode().splitlines()))
        contents = {name: file.read(name) for name in file.namelist()}
    assert {name for name, _, _ in lines} == contents.keys()
    for name, found, size in lines:
        digest = urlsafe_b64encode(sha256(contents[name]).digest()).rstrip(b"=").decode()
        own = name == f"{ABOUT}/RECORD"
        assert (found, size) == (
            ("", "") if own else (f"sha256={digest}", str(len(contents[name])))
        )


def test_equal_files_make_equal_wheels(pack):
    first = pack("linux-x86_64").read_bytes()
    assert pack("linux-x86_64").read_bytes() == first


@pytest.mark.parametrize("name", wheels.TARGETS)
def test_the_library_of_a_system_is_the_one_that_is_looked_for_there(name, monkeypatch):
    target = wheels.TARGETS[name]
    monkeypatch.setattr(sys, "platform", PLATFORMS[target.system])
    there = runpy.run_path(native_library.__file__)
    assert there["_FILE"] == target.library


@pytest.mark.skipif(
    (platform.system(), platform.machine()) not in {("Linux", "x86_64"), ("Linux", "aarch64")},
    reason="has no wheel, or one of another name",
)
def test_pip_takes_the_wheel_of_this_machine_and_no_other():
    takes = {tag.platform for tag in sys_tags() if tag.interpreter == "py3" and tag.abi == "none"}
    mine = f"linux-{platform.machine()}"
    assert {name for name, target in wheels.TARGETS.items() if target.tag in takes} == {mine}


def test_an_unknown_target_is_refused_before_anything_is_built(capsys, monkeypatch):
    monkeypatch.setattr(wheels, "run", lambda *command, **_: pytest.fail(f"ran {command}"))
    with pytest.raises(SystemExit):
        wheels.main(["linux-x86_64", "linux-riscv64"])
    assert "no target linux-riscv64: there are linux-x86_64" in capsys.readouterr().err
