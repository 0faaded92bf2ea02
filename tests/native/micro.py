"""The small kernels of tests/emulator/micro.cu, with random boxes and descriptors.

The emulator and a GPU run the same ones.
"""

import ctypes
import random
from ctypes import addressof, c_int, c_ubyte, c_uint32, c_uint64, c_void_p, memmove
from dataclasses import dataclass, field

import torch

from blockscale.runtime.cuda import Build
from native.host_function import compiled, emulator
from native.host_library import EMULATOR

SOURCE = EMULATOR / "micro.cu"
MISTAKES = (
    "NONE", "NO_PROXY_FENCE", "WRONG_PHASE", "TOO_FEW_BYTES", "TOO_MANY_BYTES", "MISSING_ARRIVAL",
    "NO_WAIT_FOR_EMPTY", "NO_WGMMA_WAIT", "NO_WGMMA_FENCE", "NO_INIT_FENCE", "EARLY_EXIT",
    "NO_CTA_BARRIER", "NO_COPY_WAIT", "UNALIGNED_COPY", "ONE_WARP_SHORT", "EMPTY_TOO_SOON",
    "BEYOND_THE_END", "NO_FLAG", "NO_GLOBAL_FENCE",
)  # fmt: skip
PARTS = ("copy_box", "multiply", "fragments", "pipeline", "exchange")
SHARED = 48 * 1024  # bytes that a launch asks for
ITEMS = {0: 1, 1: 2, 2: 4, 9: 2}  # bytes of the tensor map's data types that are tried


class MicroArguments(ctypes.Structure):
    _fields_ = [
        ("map", c_ubyte * 128),
        ("in_", c_void_p),
        ("out", c_void_p),
        ("descriptor", c_uint64),
        ("coordinates", c_int * 3),
        *((name, c_int) for name in ("rank", "bytes", "box_bytes")),
        *((name, c_int) for name in ("is_bfloat16", "mistake", "k_tiles", "part")),
    ]  # fmt: skip


@dataclass
class Map:
    """What cuTensorMapEncodeTiled is told."""

    kind: int
    sizes: tuple
    strides: tuple  # bytes, of all dimensions but the first
    box: tuple
    swizzle: int

    def encode(self, library, address):
        rank, memory = len(self.sizes), (c_ubyte * 192)()
        start = -(-addressof(memory) // 64) * 64
        status = library.cuTensorMapEncodeTiled(
            start, self.kind, rank, address, (c_uint64 * rank)(*self.sizes),
            (c_uint64 * (rank - 1))(*self.strides), (c_uint32 * rank)(*self.box),
            (c_uint32 * rank)(*(1,) * rank), 0, self.swizzle, 0, 0,
        )  # fmt: skip
        assert status == 0, self
        return ctypes.string_at(start, 128)


@dataclass
class Case:
    part: str
    given: torch.Tensor  # bytes
    out_bytes: int
    threads: int = 128
    cluster: int = 1
    map: Map | None = None
    mapped: torch.Tensor | None = None  # bytes that the map describes
    facts: dict = field(default_factory=dict)

    def run(self, device="cpu", library=None, function=None, stream=0):
        """The bytes that the kernel writes, by the emulator or, if told so, by a GPU."""
        given = self.given.to(device)
        out = torch.full((self.out_bytes,), 0xA5, dtype=torch.uint8, device=device)
        part = PARTS.index(self.part)
        arguments = MicroArguments(
            in_=given.data_ptr(), out=out.data_ptr(), part=part, **self.facts
        )
        if self.map is not None:
            mapped = self.mapped.to(device)
            encoded = self.map.encode(library or emulator(), mapped.data_ptr())
            memmove(addressof(arguments), encoded, 128)
        kernel = (function or compiled)(Build(str(SOURCE), "micro", ()))
        kernel.launch(
            (1, self.cluster, 1), self.threads, SHARED, stream, arguments, cluster=self.cluster
        )
        return out.cpu()


def numbers(order, count, is_bfloat16=True):
    """Small integers, whose products and sums are exact."""
    made = torch.tensor([order.randint(-8, 8) for _ in range(count)], dtype=torch.float32)
    return made.to(torch.bfloat16 if is_bfloat16 else torch.float16).view(torch.uint8)


def some_bytes(order, count):
    return torch.tensor(list(order.randbytes(count)), dtype=torch.uint8)


def random_box(seed):
    """A box of a random tensor, which may lie partly or wholly outside."""
    order = random.Random(seed)
    kind, swizzle, rank = order.choice(list(ITEMS)), order.randint(0, 3), order.choice((2, 3))
    item = ITEMS[kind]
    inner = {0: 16 * order.randint(1, 8), 1: 32, 2: 64, 3: 128}[swizzle] // item
    box = (inner, *(order.randint(1, 9) for _ in range(rank - 1)))
    sizes = (
        inner * order.randint(1, 3) - order.randint(0, 3),
        *(order.randint(1, 12) for _ in range(rank - 1)),
    )
    sizes = (max(1, sizes[0]), *sizes[1:])
    row = -(-sizes[0] * item // 16) * 16 + 16 * order.randint(0, 2)
    strides = (row, row * sizes[1] + 16 * order.randint(0, 2))[: rank - 1]
    at = [order.randint(-4, size) for size in sizes]
    step = 16 // item  # elements: copies begin at multiples of 16 bytes
    at[0] = step * order.randint(-3, sizes[0] // step)
    count = item
    for each in box:
        count *= each
    total = strides[-1] * sizes[-1] + row
    facts = {
        "coordinates": (*at, 0)[:3],
        "rank": rank,
        "bytes": -(-count // 16) * 16,
        "box_bytes": count,
    }
    return Case(
        "copy_box", some_bytes(order, SHARED), facts["bytes"], facts=facts,
        map=Map(kind, sizes, strides, box, swizzle), mapped=some_bytes(order, total),
    )  # fmt: skip


def random_product(seed):
    """One wgmma by a random matrix descriptor."""
    order = random.Random(seed)
    swizzle, is_bfloat16, rows = order.randint(0, 3), order.random() < 0.5, 64
    if swizzle:
        width = {1: 128, 2: 64, 3: 32}[swizzle]
        stride = 8 * width * order.randint(1, 2)
        start, leading = (
            1024 * order.randint(0, 3) + 32 * order.randrange(width // 32),
            16 * order.randint(0, 3),
        )
    else:
        stride, leading = 16 * order.randint(1, 40), 16 * order.randint(1, 40)
        start = 16 * order.randint(0, 60)
    size = start + rows // 8 * stride + leading + 2048
    size = -(-size // 1024) * 1024
    descriptor = start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | swizzle << 62
    given = numbers(order, size // 2 + 128 * 8, is_bfloat16)
    facts = {"descriptor": descriptor, "bytes": size, "is_bfloat16": is_bfloat16}
    return Case("multiply", given, 128 * 32 * 4, facts=facts)


def random_fragments(seed):
    return Case("fragments", numbers(random.Random(seed), 512), 1024, threads=32)


def ring(seed, mistake="NONE", k_tiles=5):
    """A ring of two stages that two CTAs fill for each other."""
    order = random.Random(seed)
    k = 64 * k_tiles
    rows = Map(9, (k, 32), (2 * k,), (64, 16), 3)
    facts = {"k_tiles": k_tiles, "mistake": MISTAKES.index(mistake)}
    return Case(
        "pipeline", numbers(order, k_tiles * 128 * 32), 2 * 128 * 16 * 4, threads=160, cluster=2,
        facts=facts,
        map=rows, mapped=numbers(order, 32 * k),
    )  # fmt: skip


def passing_on(seed, mistake="NONE"):
    """Threads give each other numbers through shared memory and DSMEM; then wgmma reads theirs, and
    a bulk copy brings the sums back from global memory."""
    given = numbers(random.Random(seed), 4096)
    facts = {"mistake": MISTAKES.index(mistake)}
    return Case("exchange", given, 4096 + 4 * 128 * 16 * 4, cluster=2, facts=facts)
