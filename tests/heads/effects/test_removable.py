"""How many heads can go: the crossing by hand, and a planted model where it is known which can."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head
from manyheads.heads.effects import Removal, count_removable
from manyheads.heads.effects.removable import crossing
from support.tiny_transformers import build

HEADS = [Head(layer, head) for layer in range(3) for head in range(6)]


@pytest.mark.parametrize(
    ("losses", "share", "wanted"),
    [
        # 1% of 2.0 is reached 4/10 of the way from 2.00 at 10 heads to 2.05 at 20
        ([2.00, 2.00, 2.05], 0.01, (14.0, False)),
        ([2.00, 1.90, 1.95], 0.01, (20.0, True)),
        ([2.00, 2.50, 1.00], 0.01, (0.4, False)),  # what comes after the first crossing does not count
        ([2.00, 2.02, 2.10], 0.01, (10.0, False)),  # reached, not passed
        ([0.00, 0.10, 0.20], 0.01, (0.0, False)),
    ],
)
def test_where_the_loss_crosses(losses: list[float], share: float, wanted: tuple[float, bool]) -> None:
    heads, beyond = crossing([0, 10, 20], np.array(losses)[:, None], share=share)
    assert heads == pytest.approx(wanted[0])
    assert beyond is wanted[1]


def test_the_mean_over_batches_crosses() -> None:
    losses = np.array([[1.0, 3.0], [1.2, 3.0], [1.2, 3.2]])  # means 2.0, 2.1, 2.2
    assert crossing([0, 1, 2], losses, share=0.05) == (1.0, False)


def batches(count: int = 4) -> list[torch.Tensor]:
    return list(torch.randint(3, 90, (count, 1, 16), generator=torch.Generator().manual_seed(5)))


def planted(dead: list[Head]):
    """A model in which some heads reach nothing: their columns of the output projection are zero."""
    model = build("llama")
    for layer, head, *_ in dead:
        width = model.model.layers[layer].self_attn.head_dim
        model.model.layers[layer].self_attn.o_proj.weight.data[:, head * width : (head + 1) * width] = 0
    return model


def test_heads_that_reach_nothing_can_all_go_and_no_others() -> None:
    dead = HEADS[4:13]
    model = planted(dead)
    order = [*dead, *(head for head in HEADS if head not in dead)]
    given = batches()
    with torch.no_grad():
        whole = {str(ids.tolist()): model(input_ids=ids).logits for ids in given}

    def changed(outputs, batch) -> torch.Tensor:
        return 1 + (outputs.logits - whole[str(batch["input_ids"].tolist())]).square().mean()

    found = count_removable(model, given, order, how="zero", share=1e-6, metric=changed)
    # tried: 1 and 2 and 4 (a share of 18), all of them gone at 9, not at 18, so two more between
    assert found.counts == (0, 1, 2, 4, 9, 12, 15, 18)
    assert found.losses[:5] == pytest.approx([1] * 5, abs=1e-9)
    assert found.losses[5] > 1 + 1e-4
    assert (found.heads, found.low, found.high) == (9, 9, 9)
    assert (found.total, found.beyond) == (18, False)


@pytest.mark.parametrize("how", ["zero", "mean", "resample"])
def test_where_no_head_does_anything_all_can_go(how: str) -> None:
    found = count_removable(planted(HEADS), batches(), HEADS, how=how, share=0.01)
    assert (found.heads, found.low, found.high, found.beyond) == (18, 18, 18, True)
    assert found.losses == pytest.approx([found.losses[0]] * len(found.losses))


def test_the_interval_is_of_the_batches_and_the_same_for_the_same_seed() -> None:
    model = build("llama")
    first, again = (count_removable(model, batches(6), HEADS, seed=3) for _ in range(2))
    assert first == again
    assert first.low <= first.heads <= first.high


def test_losses_are_those_of_the_model_without_the_heads() -> None:
    from manyheads.heads.effects import ablated

    model, given = build("llama"), batches(2)
    found = count_removable(model, given, HEADS)
    count = found.counts[2]
    with torch.no_grad(), ablated(model, HEADS[:count]):
        losses = [model(input_ids=ids, labels=ids).loss.item() for ids in given]
    assert found.losses[2] == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_the_interval_does_not_end_where_trying_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """1% more is reached at 10 heads on one text, at 40 on the other, at 16 on their mean; drawn twice each is one in four."""

    def curve(_: object, order: list[Head], counts: list[int], **__: object) -> Removal:
        rows = [[1 + 0.01 * count / 10, 1 + 0.01 * count / 40] for count in counts]
        return Removal(tuple(counts), torch.tensor(rows, dtype=torch.float64), torch.ones(2) / 2, "zero")

    monkeypatch.setattr("manyheads.heads.effects.ablation_run.AblationRun.together", curve)
    found = count_removable(build("llama"), batches(2), [Head(layer, head) for layer in range(8) for head in range(8)])
    assert (found.heads, found.low, found.high, found.beyond) == (16, 10, 40, False)
    few = count_removable(build("llama"), batches(2), [Head(0, head) for head in range(30)])
    assert (few.heads, few.low, few.high, few.counts[-1]) == (16, 10, 30, 30)  # there are no more


def test_one_batch_has_no_interval() -> None:
    with pytest.raises(ManyheadsError, match="1 batch of text"):
        count_removable(build("llama"), batches(1), HEADS)
