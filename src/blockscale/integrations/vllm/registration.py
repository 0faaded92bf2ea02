"""How vLLM comes to know of this library.

vLLM calls `register` in each of its processes, more than once in some, and only logs what it
raises. A second call changes nothing.
"""

from __future__ import annotations

import logging
from importlib.metadata import version

from blockscale.integrations.vllm.loader import with_comparison
from blockscale.nn.labels import NAME

logger = logging.getLogger("vllm.blockscale")

TESTED = ("0.32",)  # of vLLM: what `make serving` runs against


def register() -> None:
    from vllm.model_executor.layers.quantization import (
        QUANTIZATION_METHODS,
        register_quantization_config,
    )

    if NAME in QUANTIZATION_METHODS:
        return
    from vllm.model_executor.model_loader import DefaultModelLoader

    from blockscale.integrations.vllm.config import BlockscaleConfig

    warning = version_warning(_vllm_version())
    if warning is not None:
        logger.warning(warning)
    register_quantization_config(NAME)(BlockscaleConfig)
    # A method in its place, not a loader of our own: vLLM warns of each format that gets another.
    DefaultModelLoader.load_weights = with_comparison(DefaultModelLoader.load_weights)


def _vllm_version() -> str:
    """Of the module: the package has several names, one for each kind of machine."""
    import vllm

    return str(vllm.__version__)


def version_warning(found: str) -> str | None:
    """For a vLLM that was not tested with; None for one that was."""
    if any(found == each or found.startswith(f"{each}.") for each in TESTED):
        return None
    return (
        f"blockscale {version('blockscale')} was tested with vLLM {', '.join(TESTED)}, and this is "
        f"{found}: if loading fails, install a vLLM that was"
    )
