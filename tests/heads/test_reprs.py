"""What a notebook shows of a result: one line, whatever it holds."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from manyheads.heads.effects import head_importance  # noqa: E402
from manyheads.heads.statistics import head_statistics  # noqa: E402
from support.tiny_transformers import build, inputs  # noqa: E402


def test_importance_says_what_was_done_on_what() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    first = head_importance(model, [ids, ids])
    assert repr(first) == (
        f"Importance(first-order: 18 heads on 2 batches, baseline {first.baseline:.4f}; {first.seconds:.1f} s)"
    )
    taken = head_importance(model, [ids], method="mean", heads="1:2")
    assert repr(taken).startswith("Importance(ablation by mean, head by head: 1 head on 1 batch, baseline ")


def test_statistics_say_how_large_they_are() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    found = head_statistics(model, [ids], key_sets={"commas": [5]})
    queries = 3 * ids.numel()  # of three layers
    assert repr(found) == (
        f"HeadStatistics(3 layers of up to 6 heads, {queries} queries; masses self, previous, next, duplicate, induction, "
        "first, commas)"
    )
    staged = repr(head_statistics(build("t5"), [inputs("t5")]))
    assert staged.startswith("HeadStatistics(7 layers of up to 6 heads in encoder, decoder, cross, ")
    assert "\n" not in staged
