"""When latent attention absorbs: by the query length, as DeepSeek-V3's sizes have it (facts.md 4.3)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from manyheads.layer.backends import is_absorption_profitable  # noqa: E402
from manyheads.ops import latent as forms  # noqa: E402
from manyheads.spec import AttentionSpec  # noqa: E402
from support.attention_layers import SPECS, cached, layer, tokens  # noqa: E402

V3 = AttentionSpec.mla(7168, 128, rank=512, nope_dim=128, rope_dim=64, v_head_dim=128, q_rank=1536)


@pytest.mark.parametrize(
    ("count", "keys", "absorbs"),
    [
        (1, 100_000, True),
        (170, 10_000_000, True),  # below c(n + v)/(2c - n - v) = 170.7
        (171, 10_000_000, False),
        (128, 512, False),  # 128 · 512 · 768 = 384 · 131,072: as much work either way
        (127, 512, True),
        (1, 1, False),
        (4096, 4096, False),  # a prefill from scratch
    ],
)
def test_it_absorbs_below_the_crossover(count: int, keys: int, absorbs: bool) -> None:
    assert is_absorption_profitable(V3.kv, count, keys) is absorbs


def test_a_latent_narrower_than_its_heads_is_always_scored_itself() -> None:
    spec = AttentionSpec.mla(64, 4, rank=8, nope_dim=8, rope_dim=4, v_head_dim=8)
    assert is_absorption_profitable(spec.kv, 100, 100)


def test_decoding_absorbs_and_prefill_expands(monkeypatch: pytest.MonkeyPatch) -> None:
    made, ran = layer("mla"), []
    for form in ("absorbed", "expanded"):
        exact = getattr(forms, form)
        monkeypatch.setattr(
            forms, form, lambda *a, exact=exact, ran_as=form, **k: (ran.append(ran_as), exact(*a, **k))[1]
        )
    cache = cached("growing", SPECS["mla"], 2)
    with torch.no_grad():
        made(tokens(2, 30), cache=cache)
        made(tokens(2, 1), cache=cache)
        made(tokens(2, 1), cache=cache, form="expanded")
        made(tokens(2, 9), form="absorbed")
    assert ran == ["expanded", "absorbed", "expanded", "absorbed"]
