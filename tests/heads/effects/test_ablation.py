"""Heads really taken away: against the columns of the output projection, and with activation caching or without."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from manyheads.errors import ManyheadsError  # noqa: E402
from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.effects import ablate_heads, ablated, head_importance, rank_correlation, removal_curve  # noqa: E402
from manyheads.heads.effects.activation_cache import ActivationCache  # noqa: E402
from manyheads.models.door.door import open_door  # noqa: E402
from manyheads.ops import softmax  # noqa: E402
from support.tiny_transformers import build, inputs, logits  # noqa: E402

FAMILIES = ["llama", "gemma2", "gpt_oss", "deepseek_v3", "jamba", "qwen3_next", "modernbert", "t5", "whisper", "opt"]


def mean_square(out: Any, _: Any) -> torch.Tensor:
    """A metric for every kind of model."""
    return out[0].double().square().mean()


def columns(weight: torch.Tensor, width: int, heads: tuple[int, ...], *, rows: bool = False) -> None:
    """Zeroes what the output projection takes from these heads."""
    for head in heads:
        part = slice(head * width, (head + 1) * width)
        weight.data[part if rows else (slice(None), part)] = 0


def test_o70_a_masked_head_equals_zeroed_columns_of_the_output_projection() -> None:
    projections: dict[str, Any] = {
        "llama": (lambda m: m.model.layers[1].self_attn.o_proj.weight, 10, False, ""),
        "gpt2": (lambda m: m.transformer.h[1].attn.c_proj.weight, 6, True, ""),
        "bert": (lambda m: m.encoder.layer[1].attention.output.dense.weight, 6, False, ""),
        "t5": (lambda m: m.decoder.block[1].layer[1].EncDecAttention.o.weight, 10, False, "cross"),
        "whisper": (lambda m: m.model.encoder.layers[1].self_attn.out_proj.weight, 6, False, "encoder"),
    }
    for name, (weight, width, rows, stack) in projections.items():
        model, batch = build(name), inputs(name)
        with ablated(model, [Head(1, 2, stack), Head(1, 5, stack)]):
            found = logits(model, batch)
        assert not torch.allclose(found, logits(model, batch), atol=1e-3)
        columns(weight(model), width, (2, 5), rows=rows)
        assert torch.allclose(found, logits(model, batch), atol=1e-5), name


def test_zero_ablation_is_the_loss_without_the_columns() -> None:
    model, ids = build("llama", dtype=torch.float64, attention="sdpa"), inputs("llama")["input_ids"]
    found = ablate_heads(model, [ids])
    assert found.reused
    assert bool(found.exact.all())
    loss = lambda m: head_importance(m, [ids]).baseline  # noqa: E731
    whole = loss(model)
    for layer in range(3):
        for head in range(6):
            weight = model.model.layers[layer].self_attn.o_proj.weight
            before = weight.data.clone()
            columns(weight, 10, (head,))
            assert found.score(Head(layer, head)) == pytest.approx(loss(model) - whole, abs=1e-12)
            weight.data.copy_(before)


def test_a_head_is_asked_for_as_it_is_written() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    found = ablate_heads(model, [ids], heads="2:1,3")
    assert found.score("2:1") == found.score("L2H1") == found.score((2, 1)) == found.score(Head(2, 1))
    with pytest.raises(ManyheadsError, match="'two' is not the address of a head"):
        found.score("two")
    with pytest.raises(ManyheadsError, match="there is no head 9:1"):
        found.score("9:1")
    by_words, by_heads = (removal_curve(model, [ids], order, counts=[2]) for order in (["2:1", (2, 3)], found.heads()))
    assert by_words.values == by_heads.values


def padded() -> dict[str, torch.Tensor]:
    ids = inputs("llama", batch=3)["input_ids"].clone()
    mask = torch.ones_like(ids)
    mask[0, :4], mask[2, :1] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def seen_by(model: Any, projection: Any, batch: Any) -> torch.Tensor:
    """The input (b, t, h·v) of an output projection: what transformers itself hands to it."""
    kept: list[torch.Tensor] = []
    hook = projection.register_forward_pre_hook(lambda _, args: kept.append(args[0].detach().clone()))
    logits(model, batch)
    hook.remove()
    return kept[0].nan_to_num()  # transformers has NaN where a query sees nothing


def loss_with(model: Any, projection: Any, given: torch.Tensor, head: int, batch: Any) -> float:
    """The loss when the projection is given `given` for one head."""
    part = slice(head * 10, (head + 1) * 10)

    def swap(_: Any, args: Any) -> Any:
        x = args[0].clone()
        x[..., part] = given[..., part]
        return (x,)

    hook = projection.register_forward_pre_hook(swap)
    found = head_importance(model, [batch], heads={0: [0]}).baseline
    hook.remove()
    return found


def with_positions(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**batch, "position_ids": (batch["attention_mask"].cumsum(-1) - 1).clamp_min(0)}


def test_mean_ablation_gives_the_mean_over_real_positions() -> None:
    model, batch = build("llama", dtype=torch.float64, attention="sdpa"), padded()
    found = ablate_heads(model, [batch], how="mean", heads={1: [0, 4]})
    projection = model.model.layers[1].self_attn.o_proj
    outputs = seen_by(model, projection, with_positions(batch))
    mean = outputs[batch["attention_mask"].bool()].mean(0)
    for head in (0, 4):
        wanted = loss_with(model, projection, mean.expand_as(outputs), head, batch) - found.baseline
        assert found.score(Head(1, head)) == pytest.approx(wanted, abs=1e-12)
    assert int(torch.isnan(found.scores).sum()) == 16


@pytest.mark.parametrize("positions", ["later", "first"])
def test_the_first_real_position_alone_or_left_alone(positions: str) -> None:
    model, batch = build("llama", dtype=torch.float64, attention="sdpa"), padded()
    found = ablate_heads(model, [batch], how="mean", heads={1: [0, 4]}, positions=positions)
    projection = model.model.layers[1].self_attn.o_proj
    outputs, real = seen_by(model, projection, with_positions(batch)), batch["attention_mask"].bool()
    first = torch.zeros_like(real)
    for row, start in enumerate(real.int().argmax(1).tolist()):
        first[row, start] = True
    mean = outputs[real & ~first].mean(0) if positions == "later" else outputs[real].mean(0)
    where = first if positions == "first" else ~first
    given = torch.where(where[..., None], mean, outputs)
    for head in (0, 4):
        wanted = loss_with(model, projection, given, head, batch) - found.baseline
        assert found.score(Head(1, head)) == pytest.approx(wanted, abs=1e-12)
        assert abs(found.score(Head(1, head))) > 1e-6


@pytest.mark.parametrize("positions", ["all", "later", "first"])
def test_texts_in_one_row_are_as_texts_by_themselves(positions: str) -> None:
    """Their first positions too, and no token is guessed from the text before its own."""
    model = build("llama", dtype=torch.float64, attention="sdpa")
    texts = [[5, 6, 7, 5, 6, 9, 5], [5, 8, 6, 5, 3], [6, 6, 7, 5, 6, 8]]
    row = {
        "input_ids": torch.tensor([[token for text in texts for token in text]]),
        "position_ids": torch.tensor([[at for text in texts for at in range(len(text))]]),
    }
    apart = [torch.tensor([text]) for text in texts]
    found, right = (ablate_heads(model, given, how="mean", positions=positions) for given in ([row], apart))
    assert found.baseline == pytest.approx(right.baseline, rel=1e-6)  # the norms round to float32
    assert torch.allclose(found.scores, right.scores, rtol=1e-4, atol=1e-7)
    assert bool((right.scores.abs() > 1e-5).any())


def test_attention_that_is_not_causal_has_no_first_position() -> None:
    model = build("bert-masked-lm", dtype=torch.float64)
    batch = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "labels": torch.tensor([[-100, 6, -100, 8]])}
    everywhere, later, first = (ablate_heads(model, [batch], positions=where) for where in ("all", "later", "first"))
    assert torch.equal(everywhere.scores, later.scores)
    assert not first.scores.nan_to_num().any()
    with pytest.raises(ManyheadsError, match="positions='last' is not one of 'all', 'later', 'first'"):
        ablate_heads(model, [batch], positions="last")


def test_the_mean_is_that_of_all_batches() -> None:
    model, ids = build("llama", dtype=torch.float64, attention="sdpa"), inputs("llama", batch=3)["input_ids"]
    one, three = (ablate_heads(model, batches, how="mean") for batches in ([ids], [ids[:1], ids[1:2], ids[2:]]))
    assert torch.allclose(one.scores, three.scores, atol=1e-12)
    assert three.by_batch.shape == (3, 3, 6)


def test_resampling_gives_the_outputs_of_the_next_text() -> None:
    model, ids = build("llama", dtype=torch.float64, attention="sdpa"), inputs("llama", batch=3)["input_ids"]
    found = ablate_heads(model, [ids[:2], ids[2:]], how="resample", heads={1: [3]})
    projection = model.model.layers[1].self_attn.o_proj
    outputs = seen_by(model, projection, {"input_ids": ids}).roll(-1, 0)
    wanted = loss_with(model, projection, outputs, 3, ids) - found.baseline
    assert found.score(Head(1, 3)) == pytest.approx(wanted, abs=1e-12)


def test_resampling_matches_real_positions_in_order() -> None:
    model, batch = build("llama", dtype=torch.float64, attention="sdpa"), padded()
    found = ablate_heads(model, [batch], how="resample", heads={2: [1]})
    projection = model.model.layers[2].self_attn.o_proj
    own = seen_by(model, projection, with_positions(batch))
    given = own.clone()
    given[0, 4:] = own[1, :7]  # 7 real positions, from a text of 11
    given[1, :] = own[2, [*range(1, 11), 1]]  # 11 from a text of 10: from its start again
    given[2, 1:] = own[0, [*range(4, 11), 4, 5, 6]]  # 10 from a text of 7
    wanted = loss_with(model, projection, given, 1, batch) - found.baseline
    assert found.score(Head(2, 1)) == pytest.approx(wanted, abs=1e-12)


def test_resampling_needs_another_text() -> None:
    with pytest.raises(ManyheadsError, match="another text, and there is 1"):
        ablate_heads(build("llama"), [inputs("llama", batch=1)["input_ids"]], how="resample")


@pytest.mark.parametrize("name", FAMILIES)
def test_activation_caching_changes_nothing(name: str) -> None:
    model, batch = build(name), inputs(name)
    for how in ("zero", "mean"):
        quick, plain = (
            ablate_heads(model, [batch], how=how, metric=mean_square, reuse=reuse) for reuse in (True, False)
        )
        assert quick.reused
        assert not plain.reused
        assert torch.equal(quick.scores.nan_to_num(), plain.scores.nan_to_num())
        assert bool((quick.scores.nan_to_num() != 0).any())


def test_cached_activations_are_not_written_into() -> None:
    """A gate around the ablation that changes outputs where they lie: the next head's forward has what the first had."""
    model, ids = build("llama"), inputs("llama")["input_ids"]
    with open_door(model, gates=[lambda _, out: out.mul_(0.5)]):
        quick, plain = (ablate_heads(model, [ids], heads={1: [0, 1, 2]}, reuse=reuse) for reuse in (True, False))
    assert quick.reused
    assert torch.equal(quick.scores.nan_to_num(), plain.scores.nan_to_num())


def test_cached_activations_that_are_not_what_they_were_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the cache takes the outputs that were kept: wrong ones make it compute everything each time."""
    monkeypatch.setattr(ActivationCache, "__call__", lambda self, call: self._outputs[call.path] + 0.1)
    model, ids = build("llama"), inputs("llama")["input_ids"]
    found = ablate_heads(model, [ids])
    assert not found.reused
    assert torch.equal(found.scores, ablate_heads(model, [ids], reuse=False).scores)


@pytest.mark.parametrize("how", ["zero", "mean"])
@pytest.mark.parametrize(
    ("name", "changes", "size"),
    [("llama", {}, 3), ("gemma2", {}, 3), ("llama", {"num_key_value_heads": 1}, 6), ("gpt2", {}, 1)],
)
def test_a_group_goes_with_all_its_queries(name: str, changes: dict[str, Any], size: int, how: str) -> None:
    model, ids = build(name, dtype=torch.float64, **changes), inputs(name)["input_ids"]
    found = ablate_heads(model, [ids], unit="group", how=how)
    assert (found.unit, found.reused) == ("group", True)
    for row, place in enumerate(found.modules):
        assert len(place.group_of(0)) == size
        for first in range(0, place.heads, size):
            heads = [place.head(number) for number in range(first, first + size)]
            with ablated(model, heads, instead=means(model, ids, place.path) if how == "mean" else None):
                wanted = head_importance(model, [ids]).baseline - found.baseline
            assert found.scores[row, first : first + size].tolist() == pytest.approx([wanted] * size, abs=1e-12)
    if size == 1:
        assert torch.equal(found.scores, ablate_heads(model, [ids], how=how).scores)


def means(model: Any, ids: torch.Tensor, path: str) -> dict[str, torch.Tensor]:
    """(h, v) of one attention module."""
    seen: dict[str, torch.Tensor] = {}
    with open_door(model, observers=[lambda call, out: seen.update({call.path: out.mean((0, 2))})]):
        logits(model, {"input_ids": ids})
    return {path: seen[path]}


def test_groups_are_named_by_any_of_their_heads_and_compare_with_single_heads() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    every = ablate_heads(model, [ids], unit="group")
    some = ablate_heads(model, [ids], unit="group", heads={1: [4], 2: [0, 1]})
    assert some.heads() == tuple(
        Head(layer, head) for layer, first in ((1, 3), (2, 0)) for head in range(first, first + 3)
    )
    assert all(some.score(head) == every.score(head) for head in some.heads())
    order = every.ranking()
    assert all(len({(h.layer, h.head // 3) for h in order[at : at + 3]}) == 1 for at in range(0, 18, 3))
    curve = removal_curve(model, [ids], order, counts=[0, 3])
    assert curve.values[1] - curve.values[0] == pytest.approx(every.score(order[0]), abs=1e-6)
    assert rank_correlation(every, every) == pytest.approx(1)
    assert -1 <= rank_correlation(every, ablate_heads(model, [ids])) < 1
    with pytest.raises(ManyheadsError, match="unit='layer' is not one of 'head', 'group'"):
        ablate_heads(model, [ids], unit="layer")


def test_only_the_layers_from_the_head_on_are_computed() -> None:
    model, ids = build("llama", num_hidden_layers=6), inputs("llama")["input_ids"]
    ran, attended = [0] * 6, [0] * 6
    for number, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_hook(lambda *_, number=number: ran.__setitem__(number, ran[number] + 1))

    def counted(call: Any) -> torch.Tensor:
        attended[call.layer] += 1
        return softmax.attention(call.q, call.k, call.v, **call.options)

    with open_door(model, implementation=counted):
        ablate_heads(model, [ids, ids])
    # Layer l runs for the heads of layers 0 to l, in both batches; in full to count the heads, and to cache the activations of
    # each batch; and once more for each of the checks, which start at layers 3, 5 (of 6 // 2, 6 // 4 and the last).
    checks = [0, 0, 0, 1, 1, 2]
    assert ran == [2 * 6 * (layer + 1) + 3 + checks[layer] for layer in range(6)]
    # The attention whose head goes has the output that it had, for each of its 6 heads and each check that starts at it.
    starts = [0, 0, 0, 1, 0, 1]
    assert attended == [ran[layer] - 2 * 6 - starts[layer] for layer in range(6)]


def test_layers_whose_activations_cannot_be_cached_are_computed_each_time() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    shared: dict[str, torch.Tensor] = {}
    first, last = model.model.layers[0], model.model.layers[2]
    model.model.register_forward_pre_hook(lambda *_: shared.clear())
    first.register_forward_hook(lambda *_: None)
    forward, after = first.forward, last.forward

    def write(*args: Any, **keywords: Any) -> Any:
        shared["x"] = forward(*args, **keywords)
        return shared["x"]

    first.forward = write
    last.forward = lambda *args, **keywords: after(*args, **keywords) + shared["x"]
    plain = ablate_heads(model, [ids], reuse=False)
    found = ablate_heads(model, [ids])
    assert not found.reused
    assert torch.equal(found.scores, plain.scores)
    assert first.__dict__["forward"] is write  # what somebody put there stays


def test_the_model_is_left_as_it_was_also_after_an_error() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    model.train()
    calls = 0

    def fails_later(out: Any, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 7:
            raise RuntimeError("in the middle")
        return out.logits.mean()

    with pytest.raises(RuntimeError, match="in the middle"):
        ablate_heads(model, [ids], metric=fails_later)
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert all(module.training for module in model.modules())
    assert model.config._attn_implementation == "eager"
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    ids = inputs("llama")["input_ids"]
    ablate_heads(
        build("llama"), [ids, ids], heads={0: [1], 2: [0, 3]}, say=lambda done, total: told.append((done, total))
    )
    assert told == [(n, 6) for n in range(1, 7)]


def test_a_curve_takes_heads_away_together() -> None:
    model, ids = build("llama", dtype=torch.float64, attention="sdpa"), inputs("llama")["input_ids"]
    single = ablate_heads(model, [ids])
    order = [Head(1, 2), Head(0, 0), Head(1, 4)]
    curve = removal_curve(model, [ids[:1], ids[1:]], order, counts=[0, 1, 3])
    assert curve.values[0] == pytest.approx(single.baseline, abs=1e-12)
    assert curve.values[1] == pytest.approx(single.baseline + single.score(order[0]), abs=1e-12)
    with ablated(model, order):
        assert curve.values[2] == pytest.approx(head_importance(model, [ids]).baseline, abs=1e-12)
    assert curve.by_batch.shape == (3, 2)


def test_heads_and_counts_that_make_no_sense_are_refused() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    curve = lambda order, counts, **more: removal_curve(model, [ids], order, counts=counts, **more)  # noqa: E731
    for call, match in (
        (lambda: curve([Head(0, 0), "0:0"], [1]), "head 0:0 stands twice"),
        (lambda: curve([Head(0, 0)], [2]), "2 heads are to be removed and the order names 1; valid: 0 to 1"),
        (lambda: curve([Head(0, 0)], []), "no number of heads"),
        (lambda: curve([Head(9, 0)], [1]), "there is no layer 9"),
        (lambda: curve([Head(0, 0)], [1], how="noise"), "'noise'; valid: zero, mean, resample"),
        (lambda: ablated(model, {3: [0]}).__enter__(), "there is no layer 3; layers with attention: 0, 1, 2"),
    ):
        with pytest.raises(ManyheadsError, match=match):
            call()
    with pytest.raises(ManyheadsError, match="there is no head 6"), ablated(model, {1: [6]}):
        logits(model, {"input_ids": ids})
    assert model.config._attn_implementation == "eager"
