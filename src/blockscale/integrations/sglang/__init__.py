"""SGLang comes to know the quantisation method "blockscale", by its entry point for plug-ins.

Registration is tested with a stand-in for SGLang's registry. Serving with it has not been tried:
there is no build of SGLang for the CPUs that the tests run on. Linear layers on one rank are
packed; experts that are, and more ranks, are refused.
"""

from __future__ import annotations

from blockscale.nn.labels import NAME


def register() -> None:
    """A second call changes nothing."""
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS

    if NAME not in QUANTIZATION_METHODS:
        from blockscale.integrations.sglang.config import BlockscaleConfig

        QUANTIZATION_METHODS[NAME] = BlockscaleConfig


__all__ = ["register"]
