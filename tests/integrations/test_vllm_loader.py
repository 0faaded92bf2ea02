"""vLLM's own comparison of a model with its file is on for what this library serves."""

from types import SimpleNamespace

import pytest

from blockscale.integrations.vllm.loader import with_comparison


class Loader:
    """Of vLLM's, as far as it is asked here."""

    def __init__(self, enable_weights_track):
        self.enable_weights_track = enable_weights_track

    def load_weights(self, model, model_config):
        self.loaded = model


@pytest.mark.parametrize(
    ("quantization", "asked", "expected"),
    [
        ("blockscale", None, True),
        ("blockscale", False, False),  # the user has said so
        ("awq", None, None),
        (None, None, None),
    ],
)
def test_models_that_are_served_here_are_compared(quantization, asked, expected):
    loader = Loader(asked)
    with_comparison(Loader.load_weights)(loader, "m", SimpleNamespace(quantization=quantization))
    assert loader.loaded == "m"
    assert loader.enable_weights_track is expected
