"""A product by cuda/kernels/sm90_gemm.cu."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from struct import pack
from typing import Any

from blockscale.kernels.contract import Parts, Prediction
from blockscale.kernels.matmul.fragments.arguments import TileCycles, WgmmaArguments, column_maps
from blockscale.kernels.matmul.fragments.product import FragmentProduct, Shape
from blockscale.kernels.matmul.sm90_gemm.build import gemm_build
from blockscale.kernels.matmul.sm90_gemm.choice import predicted
from blockscale.kernels.matmul.sm90_gemm.config import TILE_K, Config
from blockscale.kernels.matmul.sm90_gemm.cost import tile_cycles
from blockscale.kernels.matmul.sm90_gemm.shared_memory import scale_groups_across, shared_bytes
from blockscale.kernels.matmul.sm90_gemm.space import as_compiled
from blockscale.kernels.matmul.sm90_gemm.workspace import workspace
from blockscale.runtime.cuda import Build


class Product(FragmentProduct):
    _config: Config

    def _shape(self) -> Shape:
        problem, config = self._problem, self.config_for(self._symmetric)
        return Shape(
            WgmmaArguments,
            (config.clusters(problem), config.ctas, 1),
            config.threads,
            shared_bytes(config, problem),
            config.ctas,
            x_box=(config.tile_m // config.cluster, 1),
            tiles_of_cta=config.tile_n(problem) // 16,
            tile_k=TILE_K,
        )

    def _fixed(self, weights: Sequence[Parts]) -> Any:
        arguments = super()._fixed(weights)
        arguments.band = self._config.band(self._problem)
        if self._problem.ragged and self._config.split:
            told = tile_cycles(self._problem, self._config)
            arguments.cycles = TileCycles(**told._asdict())
        return arguments

    def _weight_maps(self, part: Parts) -> tuple[bytes, bytes]:
        problem, config = self._problem, self._config
        if not config.transposed:
            return super()._weight_maps(part)
        groups = scale_groups_across(config, problem.w_kind.format)
        return column_maps(problem, part, config.weight_rows // 64, groups)

    def _workspace(self, stream: int) -> bytes:
        partial, arrivals = workspace(self._device, stream, *self._workspace_sizes)
        return pack("PP", partial.data_ptr(), arrivals.data_ptr())

    @cached_property
    def _workspace_sizes(self) -> tuple[int, int]:
        """Of sums, and of flags that say that they are there."""
        problem, config = self._problem, self._config
        flags = config.clusters(problem) * config.cluster
        return config.partial_floats(problem), flags

    @property
    def _has_workspace(self) -> bool:
        return self._config.split

    def _build(self, symmetric: bool) -> Build:
        return gemm_build(self._problem, self.config_for(symmetric), symmetric)

    def config_for(self, symmetric: bool) -> Config:
        return as_compiled(self._config, self._problem, symmetric)

    @property
    def predicted(self) -> Prediction | None:
        return predicted(self._problem, self._config)
