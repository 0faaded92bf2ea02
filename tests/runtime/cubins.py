"""Reading compiled kernels: what they use of an SM, and which instructions they are made of.

    cd tests; python -m runtime.cubins          registers and shared memory of every kernel
    cd tests; python -m runtime.cubins ENTRY    of those with this entry, and keeps the others

A kernel joins by being registered: what its launches say that they build for the examples is
compiled for every target.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from blockscale import ops
from blockscale.kernels import KERNELS
from blockscale.kernels.matmul.fragments.arguments import Arguments, WgmmaArguments
from blockscale.runtime import gpu
from blockscale.runtime.cuda import TARGETS, Build, arch_of, cubin, load_nvrtc
from blockscale.runtime.cuda.arch import capability
from runtime import sass
from runtime.disassembly import disassemble

RECORDED = "sm_90a"  # a target of which there was a GPU
RECORD = Path(__file__).with_name("cubins.json")
OTHER_PRODUCTS = ("gated_matmul", "grouped_matmul", "grouped_gated_matmul")
PRODUCTS = ("matmul", *OTHER_PRODUCTS, "input_grad")
HOW_TO_RECORD = "if that is meant: cd tests; python -m runtime.cubins"


class Usage(NamedTuple):
    registers: int  # of a thread
    stack: int  # bytes of a thread: spills, and arrays that are indexed at run time
    shared: int  # bytes of a CTA
    local: int


def disassembler() -> str | None:
    """cuobjdump, and beside it nvdisasm: of their own packages, of Triton, or of a toolkit."""
    patterns = ("nvidia/*/bin", "triton/backends/nvidia/bin")
    places = [place for each in patterns for root in sys.path for place in Path(root).glob(each)]
    tools = (shutil.which("cuobjdump", path=place) for place in [*places, None])
    return next(filter(None, tools), None)


def usage(code: bytes) -> dict[str, Usage]:
    """By entry."""
    tool = disassembler()
    assert tool is not None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pattern = r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)"
    return {name: Usage(*map(int, numbers)) for name, *numbers in re.findall(pattern, text)}


def machine_code(
    kernels: Sequence[tuple[Build, bytes]], target: str
) -> list[list[sass.Instruction]]:
    """Of each kernel: all at once, which is ten times as quick as one by one."""
    tool = disassembler()
    assert tool is not None
    return disassemble(Path(tool).with_name("nvdisasm"), kernels, target)


def opcodes(code: list[sass.Instruction]) -> set[str]:
    """ "HMMA.16816.F32.BF16" and all that there is."""
    return {each.opcode for each in code}


def loads_too_early(code: list[sass.Instruction], build: Build, target: str) -> list[str]:
    """Loads that stand before the wait for the kernel ahead in the stream, which may still write
    what is loaded: compilers take loads of constant memory for free to move."""
    major = int(target.removeprefix("sm_").rstrip("a")) // 10
    found = sass.early_loads(code, major, _pointers(build))
    return [
        f"{each.opcode} {each.operands.strip()} at {each.address - code[0].address:#x}"
        for each in found
    ]


def products_are_serial(code: list[sass.Instruction]) -> bool:
    """Whether the compiler makes a warpgroup wait after every product, as it does where registers
    are short: "gsb0" ends a group of products, of which each has four."""
    products = [each for each in code if each.opcode.startswith("HGMMA")]
    return 2 * sum("gsb0" in each.operands for each in products) > len(products)


def _pointers(build: Build) -> sass.Arguments:
    """The products read weights early, which nobody writes any more; other kernels read nothing."""
    if build.entry not in ("stream", "sm90_gemm"):
        return sass.Arguments()
    wide = dict(build.defines).get("BS_WGMMA", 1)
    struct = WgmmaArguments if wide else Arguments

    def places(*names: str) -> tuple[range, ...]:
        fields = [getattr(struct, name) for name in names if hasattr(struct, name)]
        return tuple(range(field.offset, field.offset + field.size) for field in fields)

    return sass.Arguments(
        settled=places("weight", "code_map", "scale_map"),
        written=places(
            "x", "x_scale", "x_map", "x_block_scale", "group_sizes", "partial", "arrivals"
        ),
        alignment=64 if wide else 8,  # that of tensor maps
    )


# One of each generation, and between them every line that is for some targets alone.
EVERY_LINE = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")


def compiled() -> list[tuple[str, str]]:
    """Verbs and targets that continuous integration compiles. Products have other configs on each
    target, and are compiled for all; conversions where source lines are others; gated and grouped
    products, whose lines are those of products, for the first target of a generation."""
    first = {capability(target)[0]: target for target in reversed(TARGETS)}
    targets = dict.fromkeys(OTHER_PRODUCTS, tuple(first.values())) | {"matmul": TARGETS}
    return [
        (verb, target)
        for verb in ops.VERBS
        for target in TARGETS
        if target in targets.get(verb, EVERY_LINE)
    ]


def builds_of(products: bool, target: str) -> list[Build]:
    """Of all verbs that multiply, or of all others: many have kernels in common, and whatever is
    started for one target takes long to start."""
    verbs = [verb for verb, each in compiled() if each == target and (verb in PRODUCTS) == products]
    return list(dict.fromkeys(build for verb in verbs for build in every_build(verb, target)))


@cache
def every_build(verb: str, target: str) -> list[Build]:
    """What continuous integration compiles: for each example and each kernel that takes it, what
    a call loads first. On Hopper, where kernels are recorded, of more examples. A target that no
    line is for alone has the builds that its generation's other target has not, and one of each
    entry."""
    builds = list(dict.fromkeys(_builds(verb, target)))
    if target in EVERY_LINE:
        return builds
    like = max(
        (each for each in EVERY_LINE if capability(each) < capability(target)), key=capability
    )
    known = set(every_build(verb, like))
    one_each = {build.entry: build for build in builds}.values()
    return [each for each in builds if each not in known or each in one_each]


def _builds(verb: str, target: str) -> Iterator[Build]:
    for problem in ops.examples(gpu(target), whole=target == RECORDED):
        if problem.verb == verb:
            for kernel in KERNELS[verb]:
                if kernel.refuses(problem) is None:
                    yield from kernel.bind(problem, kernel.configs(problem)[0]).builds[:1]


def compile_all(builds: list[Build], target: str) -> Iterator[tuple[Build, bytes]]:
    """Two at a time: NVRTC does not hold the GIL, and test runners have few cores."""
    with ThreadPoolExecutor(2) as pool:
        yield from zip(builds, pool.map(lambda build: cubin(build, target), builds), strict=True)


def label(build: Build, target: str) -> str:
    return f"{build} {arch_of(target)}"


def nvrtc_version() -> str:
    nvrtc = load_nvrtc()
    return nvrtc if isinstance(nvrtc, str) else nvrtc.version


def register_limit(build: Build) -> int:
    """Of a thread, with as many CTAs on an SM as the kernel is launched for."""
    defines = dict(build.defines)
    warps = defines.get("BS_N_WARPS", 8) * defines.get("BS_K_WARPS", 1)
    threads = defines.get("BS_THREADS", 32 * warps) * defines.get("BS_CTAS_PER_SM", 1)
    return min(255, 65536 // threads // 8 * 8)  # an SM has 64 Ki, given out in eights


def complaint(
    name: str, used: Usage, record: dict[str, list[int]] | None, limit: int
) -> str | None:
    """Why the use of an SM is not as it should be; registers and shared memory may fall. Without a
    record of the same compiler, registers may be as many as the launch allows."""
    if used.stack or used.local:
        return f"{name}: {used.stack} bytes of stack, {used.local} of local memory: it spills"
    if used.registers > limit:
        return f"{name}: {used.registers} registers, {limit} at most where it is launched"
    if record is None:
        return None
    if name not in record:
        return f"{name}: not recorded; {HOW_TO_RECORD}"
    for what, now, before in zip(
        ("registers", "bytes of shared memory"),
        (used.registers, used.shared),
        record[name],
        strict=True,
    ):
        if now > before:
            return f"{name}: {now} {what}, {before} before; {HOW_TO_RECORD}"
    return None


def _record(entry: str | None) -> None:
    found = {}
    for verb, target in compiled():
        builds = [each for each in every_build(verb, target) if entry in (None, each.entry)]
        for build, code in compile_all(builds, target):
            used = usage(code)[build.entry]
            found[label(build, target)] = [used.registers, used.shared]
        print(f"{verb} for {target}: {len(found)} kernels so far")
    if entry is not None:
        before = json.loads(RECORD.read_text())
        assert before["nvrtc"] == nvrtc_version(), "the others were compiled by another NVRTC"
        others = before["kernels"].items()
        found |= {key: used for key, used in others if f":{entry} " not in key}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(found[key])}" for key in sorted(found))
    RECORD.write_text(f'{{"nvrtc": "{nvrtc_version()}", "kernels": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    _record(sys.argv[1] if len(sys.argv) > 1 else None)
