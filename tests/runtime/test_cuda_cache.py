"""Compiled kernels on the disk: kept, found again, bounded, private; a bad disk costs a warning."""

import json
import os
import pickle
import re
import shutil
import time
import warnings
from pathlib import Path

import pytest

from blockscale.runtime.cuda import (
    Build,
    CompilationError,
    Entry,
    arch_of,
    cubin,
    is_cached,
    load_nvrtc,
    nvrtc,
    open_cache,
)
from blockscale.runtime.cuda import cache as cache_module
from fresh_process import FORKING, adopt

SOURCES = Path(__file__).with_name("sources")
ENTRY = Entry("stream.cu:stream [ROWS=4]", "sm_90a", "13.0")
needs_nvrtc = pytest.mark.skipif(isinstance(load_nvrtc(), str), reason=str(load_nvrtc()))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "cubins"))
    monkeypatch.delenv("BLOCKSCALE_CACHE_MB", raising=False)
    cache_module._warn_once.cache_clear()
    cache_module._open.cache_clear()
    yield tmp_path / "cubins"
    cache_module._open.cache_clear()


@pytest.fixture
def sample(tmp_path):
    shutil.copytree(SOURCES, tmp_path / "sources")
    return Build(str(tmp_path / "sources" / "sample.cu"), "sample", (("FACTOR", 3),))


@pytest.fixture
def compilations(monkeypatch):
    """What NVRTC was asked for."""
    asked, compile = [], nvrtc.Nvrtc.compile

    def counting(self, source, name, options, output="CUBIN"):
        if output == "CUBIN":
            asked.append(options)
        return compile(self, source, name, options, output)

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", counting)
    return asked


def only_file(folder):
    (file,) = folder.iterdir()
    return file


def test_what_is_written_is_read_again(folder):
    cache = open_cache()
    assert cache.read("key") is None
    code = bytes(range(256)) * 10 + b"\n\n"
    cache.write("key", ENTRY, code)
    assert cache.read("key") == code
    assert cache.holds("key")
    assert [entry for entry, _ in cache.entries()] == [ENTRY]
    assert ENTRY.source == "stream.cu"
    assert cache.clear() == 1
    assert not list(folder.iterdir())


def test_the_folder_is_private(folder):
    open_cache()
    assert folder.stat().st_mode & 0o777 == 0o700


DAMAGES = {
    "cut": lambda content: content[:-1],
    "almost nothing": lambda content: content[:10],
    "empty": lambda content: b"",
    "one byte": lambda content: content[:-9] + b"x" + content[-8:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_found_out(folder, damage):
    cache = open_cache()
    cache.write("key", ENTRY, b"machine code")
    only_file(folder).write_bytes(damage(only_file(folder).read_bytes()))
    assert cache.read("key") is None
    cache.write("key", ENTRY, b"machine code")
    assert cache.read("key") == b"machine code"


def test_least_recently_used_files_go_first(folder, monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_CACHE_MB", "1")
    cache = open_cache()
    for age, key in enumerate("dcba"):
        cache.write(key, ENTRY, bytes(200_000))
        os.utime(folder / f"{key}.cubin", (1000 - age, 1000 - age))
    assert cache.read("a") is not None  # the oldest, until it is used
    cache.write("e", ENTRY, bytes(200_000))
    cache.write("f", ENTRY, bytes(200_000))
    assert {file.stem for file in folder.iterdir()} == set("acdef")  # b is gone
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 2**20


def test_what_a_crash_left_is_removed_in_time(folder):
    cache = open_cache()
    left, young = folder / ".left.unfinished", folder / ".young.unfinished"
    left.write_bytes(b"half")
    young.write_bytes(b"half")
    os.utime(left, (time.time() - 7200,) * 2)
    cache.write("key", ENTRY, b"code")
    assert {file.name for file in folder.iterdir()} == {".young.unfinished", "key.cubin"}
    cache.clear()
    assert not list(folder.iterdir())


def test_the_cache_can_be_turned_off(monkeypatch, folder):
    monkeypatch.setenv("BLOCKSCALE_CACHE_MB", "0")
    assert open_cache() is None
    assert not folder.exists()
    monkeypatch.setenv("BLOCKSCALE_CACHE_MB", "much")
    with pytest.raises(ValueError, match="BLOCKSCALE_CACHE_MB=much: give a number of megabytes"):
        open_cache()


def test_folders_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("BLOCKSCALE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert open_cache().folder == tmp_path / "xdg" / "blockscale" / "cubins"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert open_cache().folder == tmp_path / "home" / ".cache" / "blockscale" / "cubins"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match=r"others may write there \(chmod 700 ") as told:
        assert open_cache() is None
    assert open_cache() is None
    assert len(told) == 1


def test_a_folder_of_another_user_is_not_used(folder, monkeypatch):
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.warns(RuntimeWarning, match=f"it belongs to user {owner}; they are compiled again"):
        assert open_cache() is None


@pytest.mark.parametrize(("mode", "used"), [(0o777, False), (0o775, False), (0o1777, True)])
@pytest.mark.fault(
    "others may write to a folder above that of compiled kernels",
    outcome="one warning; the folder is not used, unless it is sticky as /tmp is",
)
def test_a_folder_whose_parent_others_may_write_to_is_not_used(folder, monkeypatch, mode, used):
    above = folder / "above"
    above.mkdir(parents=True)
    above.chmod(mode)
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(above / "mine" / "cache"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert (open_cache() is not None) is used
    reason = f"others may write to {above}, above it (chmod go-w {above})"
    assert [reason in str(each.message) for each in told] == ([] if used else [True])


def test_a_folder_below_another_users_is_not_used(folder, monkeypatch):
    above = folder / "above"
    above.mkdir(parents=True)
    if os.getuid() != 0:
        pytest.skip("only root can give folders away")
    os.chown(above, 65534, -1)
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(above / "cache"))
    with pytest.warns(RuntimeWarning, match=f"{above}, above it, belongs to user 65534"):
        assert open_cache() is None


def test_a_link_does_not_hide_the_folders_above(folder, monkeypatch):
    above = folder / "above"
    (above / "real").mkdir(parents=True)
    (above / "real").chmod(0o700)
    above.chmod(0o777)
    (folder / "link").symlink_to(above / "real")
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(folder / "link"))
    with pytest.warns(RuntimeWarning, match=f"others may write to {above}, above it"):
        assert open_cache() is None


def test_a_folder_that_cannot_be_made(folder):
    folder.write_text("a file")
    with pytest.warns(RuntimeWarning, match="it cannot be made"):
        assert open_cache() is None


@needs_nvrtc
def test_a_full_disk_costs_one_warning(folder, sample, monkeypatch, compilations):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "replacing", full)
    with pytest.warns(RuntimeWarning, match="cannot keep compiled kernels .*No space left") as told:
        assert cubin(sample, "sm_90") == cubin(sample, "sm_90")
    assert len(told) == 1
    assert len(compilations) == 2


def test_an_unfinished_file_is_removed_when_the_disk_fills_up(folder, monkeypatch):
    cache = open_cache()

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        cache.write("key", ENTRY, b"code")
    assert not list(folder.iterdir())


def test_a_read_only_disk_serves_what_it_has(folder, monkeypatch):
    cache = open_cache()
    cache.write("key", ENTRY, b"code")

    def read_only(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", read_only)
    assert cache.read("key") == b"code"


@needs_nvrtc
def test_a_kernel_is_compiled_once(sample, compilations):
    assert not is_cached(sample, "sm_90")
    first = cubin(sample, "sm_90")
    assert first.startswith(b"\x7fELF")
    assert is_cached(sample, "sm_90a")
    assert cubin(sample, "sm_90a") == first  # the same code
    assert len(compilations) == 1
    assert "--gpu-architecture=sm_90a" in compilations[0]
    assert "--define-macro=FACTOR=3" in compilations[0]


@needs_nvrtc
@pytest.mark.parametrize("file", ["sample.cu", "sample.cuh", "deeper.cuh"])
def test_a_change_of_any_file_is_compiled(sample, compilations, file):
    assert [each.name for each in sample.files()] == ["sample.cu", "sample.cuh", "deeper.cuh"]
    cubin(sample, "sm_80")
    path = sample.path.with_name(file)
    path.write_text(path.read_text() + "\n// changed\n")
    cubin(sample, "sm_80")
    assert len(compilations) == 2


@needs_nvrtc
def test_the_key_is_of_everything_that_machine_code_depends_on(sample, monkeypatch):
    same = Build(sample.source, sample.entry, sample.defines)
    assert (hash(same), same) == (hash(sample), sample)
    keys = {
        build.key(options, compiler)
        for build in (
            sample,
            same,
            Build(sample.source, sample.entry, (("FACTOR", 4),)),
            Build(sample.source, "other", sample.defines),
        )
        for options in (["--gpu-architecture=sm_80"], ["--gpu-architecture=sm_90a"])
        for compiler in ("13.0", "13.4")
    }
    assert len(keys) == 3 * 2 * 2


@needs_nvrtc
def test_another_patch_of_nvrtc_compiles_again(sample, compilations, monkeypatch):
    """13.0.48 and 13.0.88 are both 13.0 to NVRTC's own question."""
    assert re.search(r"V\d+\.\d+\.\d+", load_nvrtc().build)
    cubin(sample, "sm_80")
    monkeypatch.setattr(nvrtc.Nvrtc, "build", "release 13.0, V13.0.1")
    cubin(sample, "sm_80")
    assert len(compilations) == 2


def test_a_build_keeps_no_hash_of_another_process(sample):
    before = hash(sample)
    moved = pickle.loads(pickle.dumps(sample))
    assert (moved, hash(moved)) == (sample, before)
    assert "_hash" not in vars(pickle.loads(pickle.dumps(sample)))


@needs_nvrtc
def test_where_the_library_lies_does_not_change_the_key(sample, tmp_path):
    shutil.copytree(SOURCES, tmp_path / "elsewhere")
    moved = Build(str(tmp_path / "elsewhere" / "sample.cu"), sample.entry, sample.defines)
    assert moved.key([], "") == sample.key([], "")


@needs_nvrtc
def test_a_kernel_that_does_not_compile_says_all_there_is(sample, folder):
    sample.path.write_text('extern "C" __global__ void sample() { return one; return two; }')
    with pytest.raises(CompilationError) as failure:
        cubin(sample, "sm_90")
    said = str(failure.value)
    assert said.startswith(f"{sample} for sm_90a, NVRTC ")
    assert "sample:sample" not in said
    assert "sample.cu:sample [FACTOR=3]" in said
    assert "--define-macro=FACTOR=3" in said
    for name in ("one", "two"):
        assert f'identifier "{name}" is undefined' in said
    assert not list(folder.iterdir())


@needs_nvrtc
def test_without_nvrtc_compiling_says_so(sample, monkeypatch):
    from blockscale.runtime.cuda import compile as compile_module

    monkeypatch.setattr(compile_module, "load_nvrtc", lambda: "no NVRTC: none")
    with pytest.raises(RuntimeError, match=r"^no NVRTC: none$"):
        cubin(sample, "sm_90")


def _compile_in_a_process(build):
    return cubin(build, "sm_80")


@needs_nvrtc
def test_processes_share_it(sample, folder):
    with FORKING.Pool(2, adopt, [dict(os.environ)]) as pool:
        codes = set(pool.map(_compile_in_a_process, [sample] * 4, chunksize=1))
    assert codes == {cubin(sample, "sm_80")}
    assert re.fullmatch(r"[0-9a-f]{64}\.cubin", only_file(folder).name)
    header = only_file(folder).read_bytes().split(b"\n")[1]
    assert json.loads(header)["arch"] == "sm_80"


def test_nothing_warns_where_all_is_well(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_cache().write("key", ENTRY, b"code")


@pytest.mark.parametrize(
    ("target", "arch"),
    [
        ("sm_80", "sm_80"),
        ("sm_86", "sm_86"),
        ("sm_87", "sm_86"),  # runs what its older sibling runs
        ("sm_90", "sm_90a"),
        ("sm_90a", "sm_90a"),
        ("sm_100", "sm_100a"),
        ("sm_101", "sm_100"),  # but not what is for one chip alone
        ("sm_121", "sm_121a"),
        ("sm_130", "sm_130a"),
    ],
)
def test_architectures(target, arch):
    assert arch_of(target) == arch


def test_a_target_that_is_none():
    for target in ("cpu", "sm_", "sm_9", "90"):
        with pytest.raises(ValueError, match="use one like sm_80"):
            arch_of(target)
