"""Machine code of many kernels by one call of nvdisasm.

It takes half a second to start and hundredths of a second for a kernel, so the code of all kernels
is put into one file, as bare instructions, and what comes of it is cut at their ends again.
"""

import struct
import subprocess
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from blockscale.runtime.cuda import Build, arch_of
from runtime import sass


def disassemble(
    tool: Path, kernels: Sequence[tuple[Build, bytes]], target: str
) -> list[list[sass.Instruction]]:
    """The instructions of each kernel; their addresses count from the first kernel's first."""
    codes = [_section(code, f".text.{build.entry}") for build, code in kernels]
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(codes))
        file.flush()
        arch = arch_of(target).replace("sm_", "SM")
        command = [tool, "--binary", arch, file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    every = sass.instructions(text)
    found, start = [], 0
    for code in codes:
        first, last = (
            bisect_left(every, at, key=lambda each: each.address)
            for at in (start, start + len(code))
        )
        found.append(every[first:last])
        start += len(code)
    return found


def _section(elf: bytes, wanted: str) -> bytes:
    """Of a 64-bit ELF file, by its name."""
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    # name, type, flags, address, offset, size
    sections = [struct.unpack_from("<IIQQQQ", elf, headers + i * size) for i in range(count)]
    texts = sections[names][4]
    for name, *_, offset, length in sections:
        start = texts + name
        if elf[start : elf.index(b"\0", start)].decode() == wanted:
            return elf[offset : offset + length]
    raise ValueError(f"a cubin has no section {wanted}")
