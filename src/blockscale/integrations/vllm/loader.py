"""Every parameter of a served model comes from the checkpoint, or loading fails.

vLLM can compare what a model has read with the parameters that it has, and does so by default for
models that are not quantised: some of its own quantisation methods have parameters that no file
holds. Layers of this library have none while weights are loaded, since their packed tensors are
taken out of the stream, so here the comparison stands for all the rest: norms, embeddings, biases
and plain layers. Without it whatever a file lacks keeps what was in its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from blockscale.nn.labels import NAME


def with_comparison(load_weights: Callable[..., None]) -> Callable[..., None]:
    """`load_weights` of vLLM's loader, with `enable_weights_track` on for models that are served
    by this library, unless the user has said otherwise."""

    @wraps(load_weights)
    def load(self: Any, model: Any, model_config: Any) -> None:
        if model_config.quantization == NAME and self.enable_weights_track is None:
            self.enable_weights_track = True
        load_weights(self, model, model_config)

    return load
