"""What a loss changes by, with its interval: against numbers worked out by hand and by another way."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from manyheads.heads.pruning import LossChange, mask, measure_loss_change  # noqa: E402
from manyheads.models.door.door import open_door  # noqa: E402
from support import tiny_transformers as tiny  # noqa: E402


def test_equal_windows_have_the_interval_of_a_mean() -> None:
    """Student's t of 3 degrees is 3.182446 at 97.5% (any table)."""
    values = [0.5, -0.25, 1.0, 0.75]
    half = 3.182446305 * statistics.stdev(values) / math.sqrt(4)
    found = LossChange((0.0,) * 4, tuple(values), (7.0,) * 4)
    assert found.interval == pytest.approx((0.5 - half, 0.5 + half), abs=1e-7)


def test_a_shorter_window_counts_for_less() -> None:
    """Mean (3 · 1 + 1 · 5) / 4 = 2; s² = 2 (9 · 1 + 1 · 9) / 16 = 2.25; t of 1 degree is 12.7062."""
    found = LossChange((0.0, 0.0), (1.0, 5.0), (3.0, 1.0))
    assert found.interval == pytest.approx((2 - 12.7062047 * 1.5, 2 + 12.7062047 * 1.5), abs=1e-5)


def test_what_the_windows_share_falls_out() -> None:
    """The pairs all differ by 0.25, however far the windows are apart."""
    found = LossChange((1.0, 9.0, 4.0), (1.25, 9.25, 4.25), (1.0, 1.0, 2.0))
    assert (found.before, found.after, found.change) == pytest.approx((4.5, 4.75, 0.25))
    assert found.interval == pytest.approx((0.25, 0.25))
    assert LossChange((1.0,), (2.0,), (5.0,)).interval is None


def test_losses_are_those_of_each_window() -> None:
    model = tiny.build("llama")
    draw = torch.Generator().manual_seed(3)
    texts = [torch.randint(3, 90, (1, n), generator=draw) for n in (12, 20)]

    def loss(ids: Any, gates: Any) -> float:
        with open_door(model, gates=gates), torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1]
        return float(torch.nn.functional.cross_entropy(logits, ids[0, 1:]))

    found = measure_loss_change(model, texts, {0: (1,), 2: (4, 5)})
    gate = mask(model, "0:1;2:4,5")
    assert found.whole == pytest.approx([loss(ids, []) for ids in texts], rel=1e-5)
    assert found.without == pytest.approx([loss(ids, [gate]) for ids in texts], rel=1e-5)
    assert found.weights == (11, 19)  # tokens that are predicted
    assert found.before == pytest.approx((11 * loss(texts[0], []) + 19 * loss(texts[1], [])) / 30, rel=1e-5)
