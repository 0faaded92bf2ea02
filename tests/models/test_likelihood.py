"""Windows score every token once, and losses, errors and divergences are what they are called."""

import math

import pytest
import torch

from blockscale.models import Recipe, Score, compare, load_model, standard_error, windows


@pytest.fixture
def model(folder):
    return load_model(folder)


def directly(model, ids):
    """Losses of tokens 1.. with all tokens before them as context."""
    with torch.inference_mode():
        log_p = model(input_ids=ids[None, :-1]).logits[0].log_softmax(-1)
    return -log_p.gather(-1, ids[1:, None])[:, 0]


@pytest.mark.parametrize(("length", "stride"), [(1, 1), (8, 8), (8, 3), (8, 1), (50, 20), (99, 99)])
@pytest.mark.parametrize("tokens", [2, 8, 9, 10, 41])
def test_windows_score_every_token_but_the_first_once(tokens, length, stride):
    found = windows(tokens, length, stride)
    read = min(length, tokens - 1)
    scored = []
    for start, count in found:
        assert start >= 0
        assert start + read <= tokens - 1  # the last token is predicted, never read
        scored += range(start + read - count + 1, start + read + 1)
    assert scored == list(range(1, tokens))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 8, 8), "predicts nothing"),
        ((9, 0, 1), "cannot move"),
        ((9, 4, 5), "windows of 4 tokens cannot move by 5"),
        ((9, 4, 0), "cannot move"),
    ],
)
def test_windows_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        windows(*arguments)


def test_one_window_gives_the_perplexity_of_the_model(model):
    ids = torch.randint(2, 12, (40,))
    score = compare({"it": model}, ids)["it"]
    losses = directly(model, ids)
    torch.testing.assert_close(score.losses.float(), losses, atol=1e-5, rtol=1e-5)
    assert score.perplexity == pytest.approx(math.exp(losses.mean()), rel=1e-5)
    assert score.tokens == 39
    assert math.isnan(score.perplexity_error)
    assert score.divergences is None


def test_sliding_windows_see_what_they_should(model):
    """With a stride of 3 in windows of 8, each token has the 5 to 7 before it, or more."""
    ids = torch.randint(2, 12, (30,))
    score = compare({"it": model}, ids, length=8, stride=3)["it"]
    for start, count in windows(30, 8, 3):
        losses = directly(model, ids[start : start + 9])[-count:]
        first = start + 8 - count
        torch.testing.assert_close(
            score.losses[first : first + count].float(), losses, atol=1e-5, rtol=1e-5
        )


def test_batches_change_nothing(model, monkeypatch):
    from blockscale.models import likelihood

    ids = torch.randint(2, 12, (83,))
    together = compare({"it": model}, ids, length=10)["it"].losses
    monkeypatch.setattr(likelihood, "_LOGITS", 1)
    counts = []
    alone = compare({"it": model}, ids, length=10, on_tokens=counts.append)["it"].losses
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=1e-5)
    assert counts == [10] * 8 + [2]


def test_a_model_does_not_diverge_from_itself(model):
    ids = torch.randint(2, 12, (40,))
    scores = compare({"twin": model, "it": model}, ids, reference="it", length=8)
    assert list(scores) == ["twin", "it"]
    assert scores["twin"].divergence == 0
    assert scores["twin"].ratio(scores["it"]) == 1
    assert scores["twin"].ratio_error(scores["it"]) == 0


def test_divergence_is_that_of_the_distributions(model):
    ids = torch.randint(2, 12, (20,))
    twin = Recipe.parse("kbit3").copy_of(model)
    score = compare({"it": model, "twin": twin}, ids, reference="it")["twin"]
    with torch.inference_mode():
        p, q = (m(input_ids=ids[None, :-1]).logits[0].double().softmax(-1) for m in (model, twin))
    expected = (p * (p / q).log()).sum(-1)
    torch.testing.assert_close(score.divergences, expected, atol=1e-5, rtol=1e-4)
    assert score.divergence > 0.001


def test_standard_errors():
    values = torch.randn(1000, dtype=torch.float64)
    assert standard_error(values, 1) == pytest.approx(values.std().item() / math.sqrt(1000))
    # Ten copies of a number are one observation, not ten.
    repeated = values.repeat_interleave(10)
    assert standard_error(repeated, 10) == pytest.approx(standard_error(values, 1))
    assert standard_error(repeated, 1) < standard_error(values, 1) / 3
    score = Score(values + 3, None, 1)
    assert score.perplexity_error == pytest.approx(score.perplexity * standard_error(values, 1))


def test_a_model_that_is_lost_has_an_infinite_perplexity():
    lost, sure = (Score(torch.full((8,), loss).double(), None, 4) for loss in (800.0, 1.0))
    assert lost.perplexity == lost.ratio(sure) == math.inf
    assert sure.ratio(lost) == 0
