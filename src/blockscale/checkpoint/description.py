"""Where config.json says how weights are quantised.

Mostly under `quantization_config`. Older files of compressed-tensors say it under
`compression_config`, and models of several parts may say it of their text model alone, in
`text_config`. Engines look in all of these places, so a folder that uses one of them is no plain
one; and what is written has to say it in one place only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DESCRIPTION = "quantization_config"  # in config.json, or in the metadata of a file on its own
_KEYS = (DESCRIPTION, "compression_config")
_TEXT = "text_config"


def find_description(config: Mapping[str, Any]) -> Any:
    """What is said, of whatever type; None where nothing is."""
    found = [config.get(key) for key in _KEYS]
    text = config.get(_TEXT)
    if isinstance(text, Mapping):
        found += [text.get(key) for key in _KEYS]
    return next((each for each in found if each is not None), None)


def without_description(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same config, of plain weights."""
    left = {key: value for key, value in config.items() if key not in _KEYS}
    text = left.get(_TEXT)
    if isinstance(text, Mapping):
        left[_TEXT] = {key: value for key, value in text.items() if key not in _KEYS}
    return left
