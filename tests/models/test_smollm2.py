"""A real model, where the demo has left one."""

from pathlib import Path

import pytest

from blockscale.models import Recipe, judge, load_model, load_tokenizer, tokenize

SMOLLM2 = Path(__file__).parents[2] / "build" / "smollm2"
pytestmark = pytest.mark.skipif(
    not (SMOLLM2 / "config.json").exists(), reason="no SmolLM2 in build: make demo"
)


def test_eight_bits_keep_the_predictions_of_a_real_model():
    pytest.importorskip("transformers")
    model = load_model(SMOLLM2)
    models = {"original": model, "mxfp8": Recipe.parse("mxfp8").copy_of(model)}
    ids = tokenize(load_tokenizer(SMOLLM2), None, 129)
    original, quantised = judge(models, ids, reference="original")
    assert original.perplexity < 60  # of 49,152 tokens, with little context
    assert quantised.divergence < 0.05
    assert quantised.bytes < original.bytes / 2
