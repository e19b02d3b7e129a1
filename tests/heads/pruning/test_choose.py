"""Which heads go by a budget: the least important first, worked out here by taking each away in turn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from manyheads.errors import ManyheadsError  # noqa: E402
from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.model_spec import describe  # noqa: E402
from manyheads.heads.pruning import choose_heads, compare_with_init, mask, measure_loss_change, prune  # noqa: E402
from manyheads.heads.pruning.choose import budget_heads, closed_by_gates, reinitialised, removable_range  # noqa: E402
from manyheads.heads.pruning.plan import now_held  # noqa: E402
from manyheads.models.door.door import open_door  # noqa: E402
from support import tiny_transformers as tiny  # noqa: E402


def loss_without(model: Any, ids: Any, heads: list[Head]) -> float:
    """The loss of the next token, by torch's own cross entropy."""
    with open_door(model, gates=[mask(model, heads)] if heads else []), torch.no_grad():
        logits = model(input_ids=ids).logits
    return float(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


@pytest.fixture(scope="module")
def ids() -> Any:
    return tiny.inputs("llama")["input_ids"]


def test_greedy_takes_the_head_whose_loss_rises_least_then_asks_again(ids: Any) -> None:
    model = tiny.build("llama")
    everything = [Head(layer, head) for layer in range(3) for head in range(6)]
    gone: list[Head] = []
    for _ in range(3):
        gone.append(min((h for h in everything if h not in gone), key=lambda h: loss_without(model, ids, [*gone, h])))
    assert choose_heads(model, [ids], 3, method="zero", rounds=3).heads == tuple(sorted(gone))


def test_whole_groups_go_together_and_one_of_each_layer_stays(ids: Any) -> None:
    model = tiny.build("llama")  # 3 layers of 2 groups of 3: three groups can go
    heads = choose_heads(model, [ids], 9, whole_groups=True, rounds=2).heads
    assert len(heads) == 9
    for layer in range(3):
        assert tuple(h.head for h in heads if h.layer == layer) in ((0, 1, 2), (3, 4, 5))
    assert len(choose_heads(model, [ids], 8, whole_groups=True).heads) == 6  # never more than was asked for
    assert len(choose_heads(model, [ids], 15).heads) == 15
    with pytest.raises(ManyheadsError, match="between 1 and 15 can go"):
        choose_heads(model, [ids], 16)
    with pytest.raises(ManyheadsError, match="between 3 and 9 can go, in groups of 3"):
        choose_heads(model, [ids], 2, whole_groups=True)


def test_whole_groups_are_judged_by_taking_all_of_them_away() -> None:
    """A text on which the sums of single heads would choose another group."""
    model, ids = tiny.build("llama"), torch.randint(3, 90, (2, 11), generator=torch.Generator().manual_seed(10))
    groups = [[Head(layer, first + n) for n in range(3)] for layer in range(3) for first in (0, 3)]
    alone = {head: loss_without(model, ids, [head]) for group in groups for head in group}
    best = min(groups, key=lambda group: loss_without(model, ids, group))
    assert best != min(groups, key=lambda group: sum(alone[head] for head in group))  # or the test could not fail
    assert choose_heads(model, [ids], 3, method="zero", whole_groups=True).heads == tuple(best)


def test_groups_of_different_sizes_are_judged_by_what_they_cost_a_head(ids: Any) -> None:
    """Group 0 of layer 0 has lost two of its three heads before: its score is that of one head."""
    model, whole = tiny.build("llama"), tiny.build("llama")
    prune(model, {0: (0, 1)})
    gone = [Head(0, head) for head in (0, 1)]
    groups = [[Head(layer, first + n) for n in range(3)] for layer in range(3) for first in (0, 3)]
    groups[0] = groups[0][2:]
    base = loss_without(whole, ids, gone)
    best = min(groups, key=lambda group: (loss_without(whole, ids, gone + group) - base) / len(group))
    assert choose_heads(model, [ids], 3, method="zero", whole_groups=True, rounds=1).heads == tuple(best)


def test_a_layer_of_one_group_loses_none_by_budget(ids: Any) -> None:
    with pytest.raises(ManyheadsError, match="no whole group can go: one of each layer stays"):
        choose_heads(tiny.build("llama", num_key_value_heads=1), [ids], 6, method="zero", whole_groups=True)


def test_what_went_before_is_not_chosen_again_and_numbers_stay_original(ids: Any) -> None:
    model, whole = tiny.build("llama"), tiny.build("llama")
    prune(model, {0: (0, 1, 2), 2: (3, 4, 5)})
    gone = [Head(0, head) for head in (0, 1, 2)] + [Head(2, head) for head in (3, 4, 5)]
    left = [Head(layer, head) for layer in range(3) for head in range(6)]
    best = min((h for h in left if h not in gone), key=lambda h: loss_without(whole, ids, [*gone, h]))
    assert choose_heads(model, [ids], 1, method="zero").heads == (best,)


def test_losses_are_those_of_the_whole_and_of_the_masked_model(ids: Any) -> None:
    model, heads = tiny.build("llama"), [Head(1, 4), Head(2, 0)]
    found = measure_loss_change(model, [ids], heads)
    whole, without = found.before, found.after
    assert math.isclose(whole, loss_without(model, ids, []), rel_tol=1e-5)
    assert math.isclose(without, loss_without(model, ids, heads), rel_tol=1e-5)
    assert whole != without


def test_the_same_at_initialisation_is_on_fresh_weights_of_the_same_shapes(ids: Any) -> None:
    model, heads = tiny.build("llama"), [Head(0, 0)]
    state = torch.get_rng_state()
    one, two, other = reinitialised(model, seed=1), reinitialised(model, seed=1), reinitialised(model, seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in model.state_dict().items():
        assert tensor.shape == one.state_dict()[name].shape
    weight = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(one.state_dict()[weight], two.state_dict()[weight])
    assert not torch.equal(one.state_dict()[weight], other.state_dict()[weight])
    found = compare_with_init(model, [ids], heads, seed=1, again=lambda new: choose_heads(new, [ids], 1).heads)
    assert math.isclose(found.trained.after, loss_without(model, ids, heads), rel_tol=1e-5)
    assert math.isclose(found.same.before, loss_without(one, ids, []), rel_tol=1e-5)
    assert math.isclose(found.same.after, loss_without(one, ids, heads), rel_tol=1e-5)
    assert abs(found.same.before - math.log(97)) < 0.1  # 97 tokens, none of them expected yet
    assert found.own is not None
    assert found.own.before == found.same.before


def test_gates_that_closed_say_which_heads_go(ids: Any) -> None:
    from manyheads.heads.gates import Convergence, train_gates

    model = tiny.build("llama")
    gates = train_gates(model, [ids], penalty=5.0, steps=60, rate=0.3)
    choice = closed_by_gates(gates)
    assert {head.stack for head in choice.heads} == {""}
    assert len(choice.heads) == len(gates.closed())
    with pytest.raises(ManyheadsError, match=r"no gate closed at a penalty of 0 a head.* a higher penalty closes more"):
        closed_by_gates(
            replace(gates, values=gates.values + 1, penalty=0.0, convergence=Convergence(True, 0, 18, 0.0, "converged"))
        )
    with pytest.raises(ManyheadsError, match=r"not come to rest after 20 steps .*; try 280 steps more: steps=300$"):
        closed_by_gates(train_gates(model, [ids], penalty=5.0, steps=20))


def test_rounds_are_told_with_counts(ids: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyheads.heads.progress._SECONDS_BETWEEN_WORDS", 0.0)
    said: list[str] = []
    choice = choose_heads(tiny.build("llama"), [ids, ids], 2, method="zero", rounds=2, say=said.append)
    assert choice.how == "greedy by ablation to zero"
    assert said[0] == "round 1: ablation to zero of 18 heads"
    assert said[1:37] == [f"  {done} of 36 passes" for done in range(1, 37)]  # 18 heads in 2 batches
    assert said[37:39] == ["round 1: 1 of 2 heads go", "round 2: ablation to zero of 17 heads"]


def test_room_is_all_but_one_of_each_layer(ids: Any) -> None:
    known = describe(tiny.build("llama"))  # 3 layers of 2 groups of 3
    held = now_held(known.stated, known.before)
    assert removable_range(held) == (1, 15, "heads")
    assert removable_range(held, whole_groups=True) == (3, 9, "groups of 3")
    assert budget_heads("9", 18, least=3, most=9, what="groups of 3") == 9
    with pytest.raises(ManyheadsError, match="is 10 of 18 heads; expected from 3 to 9 in groups of 3: one of each"):
        budget_heads("10", 18, least=3, most=9, what="groups of 3")


@pytest.mark.parametrize(("text", "heads"), [("12", 12), ("20%", 54), ("33.3%", 89), ("0.4%", 1)])
def test_budgets(text: str, heads: int) -> None:
    assert budget_heads(text, 270) == heads


@pytest.mark.parametrize("text", ["0", "0%", "0.1%", "270", "100%", "1.5", "many", "-3", "5 %%", ""])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(ManyheadsError, match="budget="):
        budget_heads(text, 270)
