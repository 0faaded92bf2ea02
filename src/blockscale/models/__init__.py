"""Whole language models: load them, quantise copies of them, let them write, and judge them."""

from blockscale.models.decoded import decode_
from blockscale.models.generate import Generation, encode, generate
from blockscale.models.importance import (
    device_with_room,
    measure_checkpoint,
    why_not_measurable,
)
from blockscale.models.judge import Quality, judge
from blockscale.models.likelihood import Score, compare, standard_error, windows
from blockscale.models.load import import_transformers, load_model, load_tokenizer
from blockscale.models.optimize import Optimized, optimize_
from blockscale.models.precision import best_dtype, parse_dtype
from blockscale.models.recipe import Recipe
from blockscale.models.size import bits_per_weight, is_quantized, model_bytes, peak_memory
from blockscale.models.speed import Speed, race, take_turns
from blockscale.models.text import python_reference, tokenize
from blockscale.runtime import emulates_bfloat16

__all__ = [
    "Generation",
    "Optimized",
    "Quality",
    "Recipe",
    "Score",
    "Speed",
    "best_dtype",
    "bits_per_weight",
    "compare",
    "decode_",
    "device_with_room",
    "emulates_bfloat16",
    "encode",
    "generate",
    "import_transformers",
    "is_quantized",
    "judge",
    "load_model",
    "load_tokenizer",
    "measure_checkpoint",
    "model_bytes",
    "optimize_",
    "parse_dtype",
    "peak_memory",
    "python_reference",
    "race",
    "standard_error",
    "take_turns",
    "tokenize",
    "why_not_measurable",
    "windows",
]
