"""An output head with packed weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from blockscale.integrations.engines.intake import Cut
from blockscale.integrations.vllm.linear import BlockscaleLinearMethod


class BlockscaleHeadMethod(BlockscaleLinearMethod):
    """vLLM pads the vocabulary, so that ranks have parts alike; files do not."""

    def _cuts(self, layer: Any, sizes: list[int]) -> list[Cut | None]:
        mine = layer.shard_indices
        whole = self.source.weights[0].shape[0]
        start, stop = mine.org_vocab_start_index, min(mine.org_vocab_end_index, whole)
        return [None if (start, stop) == (0, whole) else Cut(0, ((start, stop),))]

    def _rows(self, layer: Any, sizes: list[int]) -> int:
        return sum(piece.shape[0] for piece in self.pieces)  # the vocabulary, not padded

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = layer.num_embeddings_per_partition
        logits: Tensor = layer.blockscale(x)
        # What lies behind the vocabulary is cut off before anyone looks at it.
        logits = pad(logits, (0, rows - logits.shape[-1]))
        return logits if bias is None else logits + bias
