"""What heads cost: first order against differences, everything measured against plain ablation, planted heads, budgets."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from manyheads.heads.address import Head
from manyheads.heads.batches import as_batches
from manyheads.heads.effects import Budget, Texts, ablate_heads, head_effects, head_importance
from manyheads.heads.effects.first_order import first_order_effects
from manyheads.heads.effects.objective import hidden_loss
from support.tiny_transformers import build, inputs

WINDOWS, SHORT = 12, 2


def texts() -> Texts:
    draw = torch.Generator().manual_seed(3)
    rows = [torch.randint(3, 90, (1, 16), generator=draw) for _ in range(WINDOWS + SHORT)]
    given = [{"input_ids": row} for row in rows]
    return Texts(
        given[:WINDOWS], [0, 1] * (WINDOWS // 2), [{"input_ids": row[:, :8]} for row in rows[WINDOWS:]], [0, 1]
    )


def planted(alive: list[tuple[int, int]]):
    """A llama in which all heads but a few reach nothing: their columns of the output projection are zero."""
    model = build("llama", dtype=torch.float64)
    for number, layer in enumerate(model.model.layers):
        width = layer.self_attn.head_dim
        for head in range(6):
            if (number, head) not in alive:
                layer.self_attn.o_proj.weight.data[:, head * width : (head + 1) * width] = 0
    return model


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "bert-masked-lm", "bart", "t5"])
def test_first_order_is_the_slope_towards_the_mean(name: str) -> None:
    """Against differences: each head a hundredth of the way towards its mean, and away from it. Norms of transformers
    are in float32: the loss, of about 5, is off by up to 1.2e-7 of it, and what is divided by the step."""
    model = build(name, dtype=torch.float64)
    batch = inputs(name)
    batch["labels"] = batch.get("decoder_input_ids", batch["input_ids"]).clone()
    given = as_batches(model, [batch])
    found, step = first_order_effects(model, given, metric=hidden_loss), 1e-2
    own = ablate_heads(model, given, how="mean", positions="later", metric=hidden_loss)
    for place in found.modules:
        row = found.modules.index(place)
        part = {place.path: found.means[place.path]}
        far, near = (nudged_by(model, given[0], part, size) for size in (step, step / 2))
        seen = [(4 * small - large) / 3 for small, large in zip(near, far, strict=True)]  # Richardson: no h² left
        for number in place.numbers:
            assert float(found.rises[0, row, number]) == pytest.approx(seen[number], abs=6e-7 / step, rel=2e-3)
    assert torch.equal(torch.isnan(found.rises[0]), torch.isnan(own.scores))
    slopes = head_importance(model, given, metric=hidden_loss)
    assert torch.allclose(found.slopes[0], slopes.scores, atol=1e-9, equal_nan=True)


def nudged_by(model, batch, means, step: float) -> list[float]:
    """(loss with each head a step towards its mean - a step away) / 2 steps, at all positions but the first of causal
    attention."""
    from manyheads.heads.effects import measured
    from manyheads.heads.effects.replaced_outputs import first_positions
    from manyheads.models.door.door import open_door

    (path, mean), losses = next(iter(means.items())), []
    stack = "cross" if "EncDec" in path or "encoder_attn" in path else ""
    for head, way in [(head, way) for head in range(len(mean)) for way in (step, -step)]:

        def gate(call, out, head=head, way=way):
            if call.path != path:
                return out
            first = first_positions({}, call, stack)
            later = torch.ones(out.shape[0], out.shape[2], dtype=torch.bool) if first is None else ~first
            out = out.clone()
            out[:, head] += way * later[..., None] * (mean[head] - out[:, head])
            return out

        with torch.no_grad(), open_door(model, gates=[gate], mode="eval"):
            losses.append(measured(model, batch, hidden_loss)[0].item())
    return [(up - down) / (2 * step) for up, down in zip(losses[::2], losses[1::2], strict=True)]


def test_measured_on_every_window_it_is_plain_ablation() -> None:
    model, given = build("llama", dtype=torch.float64), texts()
    found = head_effects(model, given, every=True, budget=Budget(rounds=WINDOWS))
    plain = ablate_heads(model, given.windows, how="mean", positions="later", means=found.means)
    assert found.loss == pytest.approx([plain.score(head) for head in found.heads], abs=1e-12)
    assert found.windows.tolist() == [WINDOWS] * 18
    assert found.baseline == pytest.approx(plain.baseline)
    by_half = torch.stack([plain.by_batch[half::2].mean(0) for half in (0, 1)])
    assert found.by_half[0] == pytest.approx([float(by_half[0, head.layer, head.head]) for head in found.heads])
    assert found.by_half[1] == pytest.approx([float(by_half[1, head.layer, head.head]) for head in found.heads])


def test_an_order_keeps_what_is_uncertain_and_what_slopes_depend_on() -> None:
    """By hand of what first order says on each window of a half: mean + 2 s/sqrt(n), and the mean sizes of both slopes."""
    model, given = build("gpt2", dtype=torch.float64), texts()
    found = head_effects(model, given, budget=Budget(most=1, rounds=2, seconds=0.0, least=1, least_rounds=2))
    first = first_order_effects(model, as_batches(model, [*given.windows, *given.short]))
    rises, slopes = (table[:WINDOWS:2].flatten(1) for table in (first.rises, first.slopes))
    alone = [at for at in range(12) if not found.screened[at] and not found.windows[at]]
    assert len(alone) == 12 - 2
    bound = rises.mean(0) + 2 * rises.std(0) / (WINDOWS / 2) ** 0.5
    assert found.cost(0, "mean")[alone] == pytest.approx(bound[alone].numpy(), abs=1e-12)
    size = rises.abs().mean(0) + slopes.mean(0)
    assert found.cost(0, "zero")[alone] == pytest.approx(size[alone].numpy(), abs=1e-12)


def drifting(model, given: Texts):
    """A loss that is lowest for the whole model: 1 plus how far its logits are off."""
    with torch.no_grad():
        whole = {
            str(batch["input_ids"].tolist()): model(**batch).logits for batch in (*given.windows, *given.short)
        }  # fmt: skip

    def metric(outputs, batch):
        return 1 + (outputs.logits - whole[str(batch["input_ids"].tolist())]).square().mean().sqrt()

    return metric


def test_heads_that_matter_are_told_apart_and_no_others() -> None:
    alive = [(0, 2), (2, 5)]
    model, given = planted(alive), texts()
    found = head_effects(
        model, given, metric=drifting(model, given), first_order=False, budget=Budget(most=4, rounds=8)
    )  # fmt: skip
    assert [head for head, apart in zip(found.heads, found.told_apart, strict=True) if apart] == [
        Head(*at) for at in alive
    ]
    assert found.screened.all()
    assert found.windows.sum() == 4 * 8
    assert not found.stopped
    assert (found.low[found.told_apart] > 0).all()
    assert found.expected is None


def test_a_head_that_does_nothing_is_not_told_apart_from_0() -> None:
    found = head_effects(planted([(1, 1)]), texts(), every=True)
    dead = [at for at, head in enumerate(found.heads) if head != Head(1, 1)]
    assert found.loss[dead] == pytest.approx(0, abs=1e-12)
    assert not found.told_apart[dead].any()


def test_screening_sees_what_first_order_does_not() -> None:
    """Where the loss is flat at the whole model first order sees nothing; the short windows still find the heads."""
    alive = [(0, 2), (2, 5)]
    model, given = planted(alive), texts()
    slow = drifting(model, given)
    found = head_effects(
        model, given, metric=lambda outputs, batch: (slow(outputs, batch) - 1).square(), budget=Budget(most=3, rounds=8)
    )  # fmt: skip
    assert found.expected == pytest.approx([0] * 18, abs=1e-8)
    assert {head for head, many in zip(found.heads, found.windows, strict=True) if many} >= {Head(*at) for at in alive}


def test_a_budget_that_is_spent_leaves_the_least_and_says_so() -> None:
    found = head_effects(
        build("llama"), texts(), budget=Budget(most=6, rounds=10, seconds=0.0, least=3, least_rounds=4)
    )
    assert found.stopped
    assert int(found.screened.sum()) == 6
    assert sorted(set(found.windows.tolist())) == [0, 4]
    assert int((found.windows > 0).sum()) == 3
    known = found.screened | (found.windows > 0)
    assert np.isfinite(found.loss).all()  # first order is known of all
    assert np.isnan(found.low[~known]).all()
    assert (found.q_values[found.windows == 0] == 1).all()


def test_it_is_the_same_each_time() -> None:
    one, two = (head_effects(build("llama"), texts(), budget=Budget(most=6)) for _ in range(2))
    assert np.array_equal(one.loss, two.loss)
    assert np.array_equal(one.q_values, two.q_values)
