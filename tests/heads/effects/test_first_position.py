"""The first position apart: against plain ablation of it, planted where it matters, and none where attention is not causal."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from manyheads.heads.address import Head
from manyheads.heads.batches import as_batches
from manyheads.heads.effects import ablate_heads, first_position_effects
from manyheads.heads.effects.ablation_run import mean_outputs
from manyheads.heads.effects.objective import hidden_loss
from support.tiny_transformers import build


def windows(count: int = 4) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(3)
    return [{"input_ids": torch.randint(3, 90, (1, 8), generator=draw)} for _ in range(count)]


def test_it_is_plain_ablation_of_the_first_position() -> None:
    model = build("llama", dtype=torch.float64)
    given = as_batches(model, windows())
    means = mean_outputs(model, given, later=True)
    found = first_position_effects(model, given, [0, 1, 0, 1], means=means)
    plain = ablate_heads(model, given, how="mean", positions="first", means=means)
    assert len(found) == 2 * 6
    assert len({one.head.layer for one in found}) == 2
    for one in found:
        mine = plain.by_batch[:, one.head.layer, one.head.head]
        assert one.loss == pytest.approx(float(mine.mean()), abs=1e-12)
        assert one.by_half == pytest.approx((float(mine[::2].mean()), float(mine[1::2].mean())), abs=1e-12)
        assert one.largest == pytest.approx(float(mine[mine.abs().argmax()]), abs=1e-12)
        assert one.low < one.loss < one.high
    assert [abs(one.loss) for one in found] == sorted((abs(one.loss) for one in found), reverse=True)


def test_the_layer_in_which_it_matters_is_looked_into() -> None:
    """Heads of all layers but the last reach nothing, so nothing hangs on their first position."""
    model = build("llama", dtype=torch.float64)
    for layer in model.model.layers[:-1]:
        layer.self_attn.o_proj.weight.data.zero_()
    given = as_batches(model, windows())
    found = first_position_effects(model, given, [0, 1, 0, 1], means=mean_outputs(model, given, later=True))
    assert {one.head.layer for one in found if one.loss} == {2}
    assert found[0].head in {Head(2, number) for number in range(6)}


def test_attention_that_is_not_causal_has_none() -> None:
    model = build("bert-masked-lm")
    given = [batch | {"labels": batch["input_ids"]} for batch in as_batches(model, windows())]
    means = mean_outputs(model, given)
    assert first_position_effects(model, given, [0, 1, 0, 1], means=means, metric=hidden_loss) == ()
