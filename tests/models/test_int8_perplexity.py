"""What an int8 cache does to a real model's perplexity, read through the decode kernel, 16 tokens at a time."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("numba")

import manyheads  # noqa: E402
from manyheads.models.reading import shipped_text  # noqa: E402
from manyheads.models.scoring import token_ids  # noqa: E402

TOKENS, AT_ONCE = 1024, 16


def perplexity(model, ids, dtype: str) -> float:
    cache = manyheads.cache(model, dtype=dtype)
    loss = 0.0
    with torch.inference_mode():
        for start in range(0, TOKENS, AT_ONCE):
            part = torch.tensor([ids[start : start + AT_ONCE]])
            logits = model(part, cache=cache, use_cache=True).logits[0].double()
            following = torch.tensor(ids[start + 1 : start + AT_ONCE + 1])
            loss += float(torch.nn.functional.cross_entropy(logits, following, reduction="sum"))
    return math.exp(loss / TOKENS)


@pytest.mark.real
def test_int8_moves_perplexity_by_less_than_a_thousandth(smollm2) -> None:
    _, loaded = smollm2
    model = loaded.model
    ids = token_ids(loaded.tokenizer, shipped_text().text, most=TOKENS + 1)
    manyheads.enable()
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("manyheads")
        exact, rounded = (perplexity(model, ids, dtype) for dtype in ("model", "int8"))
    finally:
        model.set_attn_implementation(before)
        manyheads.disable()
    assert 5 < exact < 60  # a model that reads English
    assert rounded != exact
    assert abs(rounded / exact - 1) < 1e-3
