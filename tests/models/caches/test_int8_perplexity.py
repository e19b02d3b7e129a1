"""What an int8 cache does to a real model's predictions, read through the decode kernel, 16 tokens at a time.

The measure is the divergence KL(p || q) of each next-token distribution q from p, that of the unrounded cache: what the
loss grows by on average over the continuations that the model itself expects. The perplexity of one text will not do.
Each token's loss moves up or down by some hundredths as rounding happens to fall, and over a thousand tokens the mean of
that has a standard error of six ten-thousandths: another order of sums, and it is another draw.
"""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("numba")

import manyheads  # noqa: E402
from manyheads.models.load.text import shipped_text  # noqa: E402
from manyheads.models.scoring import token_ids  # noqa: E402
from support.sweeps import WHOLE  # noqa: E402

TOKENS, AT_ONCE = (1024 if WHOLE else 512), 16


def log_probabilities(model, ids, dtype: str):
    """(tokens, vocabulary) in float64."""
    cache = manyheads.cache(model, dtype=dtype)
    parts = []
    with torch.inference_mode():
        for start in range(0, TOKENS, AT_ONCE):
            part = torch.tensor([ids[start : start + AT_ONCE]])
            parts.append(model(part, cache=cache, use_cache=True).logits[0].double().log_softmax(-1))
    return torch.cat(parts)


@pytest.mark.real
def test_int8_costs_less_than_a_thousandth_of_perplexity(smollm2) -> None:
    _, loaded = smollm2
    model = loaded.model
    ids = token_ids(loaded.tokenizer, shipped_text().text, most=TOKENS + 1)
    manyheads.enable()
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("manyheads")
        exact, rounded = (log_probabilities(model, ids, dtype) for dtype in ("model", "int8"))
    finally:
        model.set_attn_implementation(before)
        manyheads.disable()
    following = torch.tensor(ids[1 : TOKENS + 1])[:, None]
    losses, moved = (-p.gather(1, following)[:, 0] for p in (exact, rounded))
    assert 5 < math.exp(losses.mean()) < 60  # a model that reads English
    divergence = (exact.exp() * (exact - rounded)).sum(-1)
    assert 0 < divergence.mean() < 1e-3  # a factor of perplexity: exp(1e-3) - 1 = 0.1%
    # The text's own loss moves by what is expected and by chance, of which the text says how much there is.
    change = moved - losses
    assert abs(change.mean()) < 1e-3 + 4 * change.std() / TOKENS**0.5
