"""A product by cuda/kernels/stream.cu."""

from __future__ import annotations

from dataclasses import replace

from blockscale.kernels.contract import Prediction
from blockscale.kernels.matmul.fragments.arguments import Arguments, WgmmaArguments
from blockscale.kernels.matmul.fragments.product import FragmentProduct, Shape
from blockscale.kernels.matmul.stream.build import stream_build
from blockscale.kernels.matmul.stream.choice import predicted
from blockscale.kernels.matmul.stream.config import Config
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.occupancy import padded_shared
from blockscale.kernels.matmul.stream.work import decodes_x
from blockscale.runtime.cuda import Build


class Product(FragmentProduct):
    _config: Config

    def _shape(self) -> Shape:
        facts, config = facts_of(self._problem), self._config
        grid = config.output_tiles(facts), config.splits, facts.matrices
        shared = padded_shared(config, facts)
        if not config.wgmma:
            return Shape(Arguments, grid, config.threads, shared, config.splits)
        return Shape(
            WgmmaArguments,
            grid,
            config.threads,
            shared,
            config.splits,
            x_box=(config.tile_m, config.tile_k // 64),
            tiles_of_cta=config.weight_rows // 16 // (2 if facts.gated else 1),
            tile_k=config.tile_k,
        )

    def _build(self, symmetric: bool) -> Build:
        return stream_build(self._problem, self._config, symmetric)

    def config_for(self, symmetric: bool) -> Config:
        """Any table of 5 bits is decoded in registers, and the room for it stays empty."""
        in_registers = self._problem.w_kind.format.element.bits == 5 and not symmetric
        return replace(self._config, shared_table=False) if in_registers else self._config

    @property
    def _decodes_x(self) -> bool:
        return decodes_x(self._config, facts_of(self._problem))

    @property
    def predicted(self) -> Prediction | None:
        return predicted(self._problem, self._config)
