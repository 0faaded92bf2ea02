"""The shapes that are timed, and the models they come from.

A layer's weight is [n, k], as in `nn.Linear`: n outputs, k summed over. The two orientations of a
feed-forward block stress different things: gate/up is tall (many rows to share between cores, short
sums), down is wide (few rows, long sums), and small experts are neither.

`LAYERS` is what `bench.run` times, at every m. `PRODUCTS` and `EXPERT_LAYERS` hold the batched,
gated and grouped problems that kernels for these verbs are to be measured on. Data only: this file
needs nothing but the standard library, and the documentation is generated from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # m: tokens that are multiplied at once
QUICK_ROWS = (1, 4, 16, 64)

# On a GPU: large and small layers, then those with few outputs and long sums, which leave it idle.
CUDA_QUICK_SHAPES = ((28672, 8192), (14336, 4096), (8192, 8192), (5120, 2048))
CUDA_SHAPES = (
    *CUDA_QUICK_SHAPES, (2048, 5120), (2048, 10240), (512, 2048), (2880, 2880), (2880, 7680)
)  # fmt: skip
CUDA_QUICK_ROWS = (1, 2, 4, 8, 16, 32, 64)
CUDA_ROWS = (*CUDA_QUICK_ROWS, 128, 256, 512, 1024, 4096)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One weight [n, k] of a model."""

    model: str
    part: str
    n: int
    k: int
    quick: bool = False  # in the subset that `--quick` times

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.k

    def __str__(self) -> str:
        return f"{self.model} {self.part}"


def _feed_forward(
    model: str, hidden: int, inner: int, prefix: str = "", *, quick: bool = False
) -> tuple[Layer, Layer]:
    """Both orientations of a feed-forward block."""
    return (
        Layer(model=model, part=f"{prefix}gate/up", n=inner, k=hidden, quick=quick),
        Layer(model=model, part=f"{prefix}down", n=hidden, k=inner, quick=quick),
    )


def _attention(
    model: str, hidden: int, queries: int, keys: int, *, quick: bool = False
) -> tuple[Layer, ...]:
    """q, k or v, and o; q and o are one entry where they are square."""
    square = queries == hidden
    q = Layer(model=model, part="q and o" if square else "q", n=queries, k=hidden, quick=quick)
    kv = Layer(model=model, part="k, v", n=keys, k=hidden)
    o = Layer(model=model, part="o", n=hidden, k=queries, quick=quick)
    return (q, kv) if square else (q, kv, o)


LAYERS: tuple[Layer, ...] = (
    # Dense models.
    *_feed_forward("Llama 3 8B", 4096, 14336),
    *_attention("Llama 3 8B", 4096, 4096, 1024, quick=True),
    *_feed_forward("Llama 3 70B", 8192, 28672),
    *_attention("Llama 3 70B", 8192, 8192, 1024),
    # Mixtures of experts: hidden size 2048, with one small matrix per expert.
    *_feed_forward("Qwen3-Coder-Next", 2048, 512, "expert ", quick=True),
    *_feed_forward("Qwen3-Coder-Next", 2048, 5120, "dense ", quick=True),
    *_attention("Qwen3-Coder-Next", 2048, 4096, 512),
    *_feed_forward("GLM-4.7-Flash", 2048, 1536, "routed expert "),
    *_feed_forward("GLM-4.7-Flash", 2048, 10240, "shared expert "),
    # Sizes that no power of two divides well.
    Layer(model="GPT-OSS", part="expert gate, up and down", n=2880, k=2880),
    *_feed_forward("a vision-language model", 2880, 7680),
    # The matrices of a public contest of NVFP4 kernels, and their other orientation.
    *_feed_forward("NVFP4 contest", 16384, 7168),
    *_feed_forward("NVFP4 contest", 7168, 4096),
    *_feed_forward("NVFP4 contest", 2048, 7168),
    *_feed_forward("NVFP4 contest", 4096, 3072),
    *_feed_forward("NVFP4 contest", 7168, 3072),
    *_feed_forward("NVFP4 contest", 1536, 4096),
)


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product other than one layer's: `verb` is the library's name for it.

    m           rows of x: of each batch, or of all groups together
    groups      rows of each group, sorted by expert; empty where nothing is grouped
    """

    verb: str
    source: str
    m: int
    n: int
    k: int
    batch: int = 1
    groups: tuple[int, ...] = ()


def _contest(verb: str, m: int, n: int, k: int, batch: int = 1) -> Product:
    return Product(verb=verb, source="NVFP4 contest", m=m, n=n, k=k, batch=batch)


def _grouped(n: int, k: int, *groups: int) -> Product:
    return Product(
        verb="grouped_matmul", source="NVFP4 contest", m=sum(groups), n=n, k=k, groups=groups
    )


PRODUCTS: tuple[Product, ...] = (
    # Matrix times vector, in batches; both operands quantised.
    _contest("matmul", 1, 7168, 16384),
    _contest("matmul", 1, 4096, 7168, batch=8),
    _contest("matmul", 1, 7168, 2048, batch=4),
    # Both operands quantised, 128 rows.
    _contest("matmul", 128, 7168, 16384),
    _contest("matmul", 128, 4096, 7168),
    _contest("matmul", 128, 7168, 2048),
    # act(x @ gate.T) * (x @ up.T).
    _contest("gated_matmul", 256, 4096, 7168),
    _contest("gated_matmul", 512, 4096, 7168),
    _contest("gated_matmul", 256, 3072, 4096),
    _contest("gated_matmul", 512, 3072, 7168),
    # Ragged groups of rows, one per expert.
    _grouped(4096, 7168, 80, 176, 128, 72, 64, 248, 96, 160),
    _grouped(7168, 2048, 40, 76, 168, 72, 164, 148, 196, 160),
    _grouped(3072, 4096, 192, 320),
    _grouped(4096, 1536, 128, 384),
    # Cubes, on which tensor-core kernels for MXFP8 are usually compared.
    *(
        Product(verb="matmul", source="MXFP8 cubes", m=side, n=side, k=side)
        for side in (2048, 4096, 8192, 16384)
    ),
)


@dataclass(frozen=True, kw_only=True)
class ExpertLayer:
    """gate and up, then down, of the `top` experts that each token is routed to."""

    model: str
    experts: int
    top: int
    hidden: int
    inner: int
    tokens: tuple[int, ...] = (1, 4, 16, 64, 256)


_MANY_TOKENS = (16, 256, 1024, 4096)

EXPERT_LAYERS: tuple[ExpertLayer, ...] = (
    ExpertLayer(model="Qwen3-Coder-Next", experts=512, top=10, hidden=2048, inner=512),
    ExpertLayer(model="GLM-4.7-Flash", experts=64, top=4, hidden=2048, inner=1536),
    ExpertLayer(
        model="GPT-OSS 120B", experts=128, top=4, hidden=2880, inner=2880, tokens=_MANY_TOKENS
    ),
    ExpertLayer(
        model="DeepSeek-V3", experts=256, top=8, hidden=7168, inner=2048, tokens=_MANY_TOKENS
    ),
)


def shapes(layers: Iterable[Layer] = LAYERS) -> dict[tuple[int, int], list[Layer]]:
    """Each shape once, in the order of the layers, with the layers that have it."""
    found: dict[tuple[int, int], list[Layer]] = {}
    for layer in layers:
        found.setdefault(layer.shape, []).append(layer)
    return found


def quick_shapes() -> list[tuple[int, int]]:
    return list(shapes(layer for layer in LAYERS if layer.quick))


def layers_of(n: int, k: int) -> list[str]:
    """The names of the layers with this shape; empty for a shape of one's own."""
    return [str(layer) for layer in shapes().get((n, k), [])]
