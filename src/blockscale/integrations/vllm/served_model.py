"""What the layers of one model share while a process of vLLM builds and loads it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.model_loader.weight_utils import download_weights_from_hf
from vllm.model_executor.models.utils import WeightsMapper

from blockscale.checkpoint import Checkpoint
from blockscale.checkpoint.stored import Stored
from blockscale.integrations.engines.intake import Intake
from blockscale.integrations.engines.stored_layers import StoredLayers
from blockscale.integrations.vllm.startup import Startup

_NUMBERED = re.compile(r"(.*?\.(\d+))\.")  # up to the first number of a name: a layer of a stack


class ServedModel:
    """The checkpoint that one process loads.

    is_dummy   nothing will be loaded: every byte of packed weights is zero
    """

    def __init__(self, engine: VllmConfig, mappers: Sequence[WeightsMapper]) -> None:
        self.checkpoint = Checkpoint(_folder(engine))
        self.is_dummy = engine.load_config.load_format == "dummy"
        self.name_layers(mappers)
        self.intake = Intake(list(self.checkpoint.tensors.values()), self._elsewhere)
        dialect = self.checkpoint.dialect
        self.startup = Startup(
            "no dialect" if dialect is None else dialect.NAME,
            _batch_sizes(engine),
            engine.model_config.dtype,
            is_speaker=engine.parallel_config.rank == 0,
        )
        self._stages = engine.parallel_config.pipeline_parallel_size
        text = engine.model_config.hf_text_config
        self._depth: int | None = getattr(text, "num_hidden_layers", None)
        self._seen: set[str] = set()

    def name_layers(self, mappers: Sequence[WeightsMapper]) -> None:
        """As vLLM's modules are named: the leaf is not, since mappers rename parameters too."""

        def rename(module: str) -> str:
            for mapper in mappers:
                renamed = mapper.map_name(f"{module}.{_NO_LEAF}")
                if renamed is not None:
                    module = renamed.removesuffix(f".{_NO_LEAF}")
            return module

        self.layers = StoredLayers(self.checkpoint.tensors, rename)

    def note(self, prefix: str) -> None:
        """A layer that this process has, packed or not."""
        match = _NUMBERED.match(f"{prefix}.")
        if match is not None:
            self._seen.add(match[1])

    def _elsewhere(self, stored: Stored) -> bool:
        """Of another stage of the pipeline; or of a draft model, behind the layers of this one."""
        match = _NUMBERED.match(self.layers.name_of(stored))
        if match is None or match[1] in self._seen:
            return False
        is_draft = self._depth is not None and int(match[2]) >= self._depth
        return is_draft or self._stages > 1


_NO_LEAF = "module"


class StreamMapper(WeightsMapper):
    """Takes packed tensors out of the stream that vLLM renames, before it does.

    The loader of a model puts its own mapper and that of the quantisation method together, and
    applies the result to all that it reads: this is where the method sees it.
    """

    intake: Intake

    @classmethod
    def of(cls, mapper: WeightsMapper, intake: Intake) -> StreamMapper:
        made = cls(**vars(mapper))
        object.__setattr__(made, "intake", intake)
        return made

    def __or__(self, other: Any) -> StreamMapper:
        return StreamMapper.of(_union(self, other), self.intake)

    def __ror__(self, other: Any) -> StreamMapper:
        return StreamMapper.of(_union(other, self), self.intake)

    def apply(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        return iter(super().apply(self.intake.stream(weights)))


def _union(first: WeightsMapper, second: WeightsMapper) -> WeightsMapper:
    fields = {name: value for name, value in vars(first).items() if name != "intake"}
    others = {name: value for name, value in vars(second).items() if name != "intake"}
    return WeightsMapper(**fields).__or__(WeightsMapper(**others))


def _folder(engine: VllmConfig) -> Path:
    """Where the files are; those of a model hub are fetched as vLLM itself would, just earlier."""
    model, load = engine.model_config, engine.load_config
    if Path(model.model).is_dir():
        return Path(model.model)
    patterns = ["*.safetensors", "*.json"]
    return Path(download_weights_from_hf(model.model, load.download_dir, patterns, model.revision))


def _batch_sizes(engine: VllmConfig) -> list[int]:
    captured = engine.compilation_config.cudagraph_capture_sizes or [1]
    return [*captured, engine.scheduler_config.max_num_batched_tokens]
