"""`BlockscaleConfig`: how to quantise a model while it is loaded, and what a saved one holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transformers.utils.quantization_config import QuantizationConfigMixin

from blockscale.formats import Format
from blockscale.formats import format as find_format
from blockscale.nn.labels import NAME, VERSION, label
from blockscale.nn.packed import known_x_format
from blockscale.nn.selection import Formats, selector
from blockscale.numerics import check_rule


class BlockscaleConfig(QuantizationConfigMixin):
    """For `from_pretrained(path, quantization_config=BlockscaleConfig("nvfp4"))`.

    format    one for all layers; or by pattern, as in {"*.down_proj": "mxfp8", "*": "kbit4"}: the
              first that fits a weight's name counts, None keeps it
    layers    which layers: a pattern, or several. By default all but output heads and routers
    scale     how block scales are chosen, as in `quantize`
    x_format  what activations are quantised to on the fly, as in `matmul`

    These mean what they mean for `quantize_`. A saved model has in its config.json, too,

    version   of the blockscale dialect
    tensors   in version 1, the format of each quantised tensor
    """

    def __init__(
        self,
        format: Format | str | Mapping[str, Format | str | None] | None = None,
        layers: str | Iterable[str] | None = None,
        scale: str = "mse",
        x_format: Format | str | None = None,
        *,
        tensors: Mapping[str, str] | None = None,
        version: int = VERSION,
        quant_method: str = NAME,
    ) -> None:
        if quant_method != NAME:
            raise ValueError(f"BlockscaleConfig is for quant_method {NAME!r}, not {quant_method!r}")
        self.quant_method = quant_method
        self.version = version
        self.format = _looked_up(format)
        self.layers = layers if layers is None or isinstance(layers, str) else list(layers)
        self.scale = scale
        self.x_format = known_x_format(x_format)
        self.tensors = None if tensors is None else dict(tensors)
        selector(self.layers)  # refuses what is no pattern
        if self.format is not None:
            for each in Formats(self.format):
                check_rule(scale, each)

    def to_dict(self) -> dict[str, Any]:
        """What config.json says: formats by name, and nothing that was not given."""
        format = self.format
        described = {
            "quant_method": self.quant_method,
            "version": self.version,
            "format": _labels(format) if isinstance(format, Mapping) else _label(format),
            "layers": self.layers,
            "scale": self.scale,
            "x_format": _label(self.x_format),
            "tensors": self.tensors,
        }
        return {key: value for key, value in described.items() if value is not None}


def _looked_up(
    format: Format | str | Mapping[str, Format | str | None] | None,
) -> Format | dict[str, Format | None] | None:
    if format is None:
        return None
    if isinstance(format, Mapping):
        return {
            pattern: None if each is None else find_format(each) for pattern, each in format.items()
        }
    return find_format(format)


def _label(format: Format | str | None) -> str | None:
    return None if format is None else label(format)


def _labels(formats: Mapping[str, Format | None]) -> dict[str, str | None]:
    return {pattern: _label(each) for pattern, each in formats.items()}
