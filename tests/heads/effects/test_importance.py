"""First-order importance: against finite differences of the weights, and a model that is left as it was."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from manyheads.errors import BackendError, ManyheadsError  # noqa: E402
from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.attention_modules import AttentionModule  # noqa: E402
from manyheads.heads.effects import Importance, head_importance, rank_correlation  # noqa: E402
from manyheads.heads.effects.importance_scores import ranks  # noqa: E402
from support import rounding  # noqa: E402
from support.tiny_transformers import build, inputs  # noqa: E402


def loss_of(model: Any, ids: torch.Tensor) -> float:
    """The loss of the next token, from transformers' logits: its own loss is rounded to float32."""
    with torch.no_grad():
        logits = model(input_ids=ids).logits[:, :-1]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))


def slope(model: Any, weight: torch.Tensor, head: int, loss: Any, *, width: int, by: float = 1e-5) -> float:
    """dL/dg by a central difference, g a factor on the head's columns (m, h·v) of the output projection `weight`."""
    columns = weight.data[:, head * width : (head + 1) * width]
    before, found = columns.clone(), []
    for factor in (1 + by, 1 - by):
        columns.copy_(before * factor)
        found.append(loss(model))
        columns.copy_(before)
    return (found[0] - found[1]) / (2 * by)


def state(model: Any) -> Any:
    """All that must be as it was: modes, flags, gradients, weights, the name of the attention, attributes."""
    return (
        [module.training for module in model.modules()],
        [(p.requires_grad, None if p.grad is None else id(p.grad)) for p in model.parameters()],
        [p.detach().clone() for p in model.parameters()],
        [
            (sorted(module.__dict__), len(module._forward_hooks), len(module._forward_pre_hooks))
            for module in model.modules()
        ],
        model.config._attn_implementation,
    )


def same(a: Any, b: Any) -> bool:
    return a[:2] == b[:2] and all(torch.equal(x, y) for x, y in zip(a[2], b[2], strict=True)) and a[3:] == b[3:]


@pytest.mark.parametrize(("name", "by", "close"), [("gpt2", 1e-5, 1e-6), ("llama", 1e-2, 2e-3)])
def test_scores_are_the_mean_size_of_the_slope_over_sequences(name: str, by: float, close: float) -> None:
    """llama has six query heads over two key/value heads, and norms in float32, which a small difference drowns in."""
    model = build(name, dtype=torch.float64, attention="sdpa")
    ids = inputs(name, batch=3)["input_ids"]
    found = head_importance(model, [ids])
    layers = 3 if name == "llama" else 2
    assert found.scores.shape == (layers, 6)
    assert not found.exact.any()
    assert found.baseline == pytest.approx(loss_of(model, ids), rel=1e-9)
    for layer, head in ((0, 0), (0, 5), (1, 3), (layers - 1, 2)):
        if name == "llama":
            weight, width = model.model.layers[layer].self_attn.o_proj.weight, 10
        else:
            weight, width = model.transformer.h[layer].attn.c_proj.weight.T, 6
        slopes = [
            slope(model, weight, head, lambda m, row=row: loss_of(m, ids[row : row + 1]), width=width, by=by)
            for row in range(3)
        ]
        assert found.score(Head(layer, head)) == pytest.approx(sum(map(abs, slopes)) / 3, rel=close)
        assert float(found.slopes[layer, head]) == pytest.approx(sum(slopes) / 3, rel=close, abs=1e-4 * close)


def test_batches_of_different_sizes_weigh_by_their_tokens() -> None:
    model, ids = build("llama", dtype=torch.float64, attention="sdpa"), inputs("llama", batch=3)["input_ids"]
    with rounding.Wide():  # its norms too
        parts, whole, last = (head_importance(model, batches) for batches in ([ids[:2], ids[2:]], [ids], ids[2:]))
    assert torch.allclose(parts.scores, whole.scores, rtol=1e-9, atol=1e-12)
    assert parts.weights.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert torch.allclose(parts.by_batch[1], last.scores, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_padding_on_the_left_changes_nothing(name: str) -> None:
    model, ids = build(name, dtype=torch.float64, attention="sdpa"), inputs(name)["input_ids"]
    short, long = ids[0, :5], ids[1]
    padded = torch.stack([torch.cat([torch.zeros(6, dtype=torch.long), short]), long])
    mask = torch.ones_like(padded)
    mask[0, :6] = 0
    with rounding.Wide():  # its norms too
        together = head_importance(model, [{"input_ids": padded, "attention_mask": mask}])
        alone = head_importance(model, [short, long])
    assert together.baseline == pytest.approx(alone.baseline, rel=1e-9)
    assert torch.allclose(together.scores, alone.scores, rtol=1e-9, atol=1e-12)


def test_o73_frozen_models_have_an_importance_and_stay_frozen() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    wanted = head_importance(model, [ids]).scores
    model.requires_grad_(False)
    before = state(model)
    assert torch.equal(head_importance(model, [ids]).scores, wanted)
    assert same(before, state(model))
    assert all(p.grad is None for p in model.parameters())


def test_o73_without_gradients_it_says_so() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    for context in (torch.no_grad, torch.inference_mode):
        with context(), pytest.raises(ManyheadsError, match=r"first-order importance needs gradients.*no_grad"):
            head_importance(model, [ids])
        with context():
            assert head_importance(model, [ids], method="zero", heads={0: [1]}).exact.sum() == 1


def test_a_model_made_under_inference_mode_is_refused() -> None:
    with torch.inference_mode():
        model = build("gpt2")
    with pytest.raises(ManyheadsError, match=r"loaded under torch\.inference_mode"):
        head_importance(model, inputs("gpt2"))


def test_one_batch_may_stand_for_a_list_of_one() -> None:
    model, ids = build("gpt2"), inputs("gpt2")["input_ids"]
    wanted = head_importance(model, [{"input_ids": ids}]).scores
    for batches in (ids, {"input_ids": ids}, ids.tolist()[:2]):
        assert torch.allclose(head_importance(model, batches).scores, wanted, rtol=1e-5)


def test_a_model_in_training_is_measured_without_dropout_and_goes_on_as_it_was() -> None:
    model, ids = build("gpt2", attn_pdrop=0.5, resid_pdrop=0.5), inputs("gpt2")["input_ids"]
    wanted = head_importance(model, [ids])
    model.train()
    model.transformer.h[1].eval()
    frozen = next(model.parameters()).requires_grad_(False)
    model(input_ids=ids, labels=ids).loss.backward()  # gradients that somebody is accumulating
    before, kept = state(model), [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    for method in ("first-order", "zero"):
        found = head_importance(model, [ids], method=method)
        assert found.baseline == pytest.approx(wanted.baseline)
        assert same(before, state(model))
    assert not frozen.requires_grad
    for parameter, gradient in zip(model.parameters(), kept, strict=True):
        assert (gradient is None and parameter.grad is None) or torch.equal(parameter.grad, gradient)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_gradient_checkpointing_changes_nothing(reentrant: bool, frozen: bool) -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    wanted = head_importance(model, [ids])
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})
    model.train().requires_grad_(not frozen)
    before = state(model)
    found = head_importance(model, [ids], mode=None)
    assert torch.allclose(found.scores, wanted.scores, rtol=1e-4)
    assert same(before, state(model))


def test_cross_attention_has_rows_of_its_own() -> None:
    model, batch = build("bart", dtype=torch.float64, attention="sdpa"), inputs("bart")
    batch["decoder_input_ids"] = batch["decoder_input_ids"].contiguous()
    batch["labels"] = batch["decoder_input_ids"].roll(-1, 1)

    def metric(out: Any, batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), batch["labels"].flatten())

    found = head_importance(model, [batch], metric=metric)
    assert [(place.stack, place.layer) for place in found.modules].count(("cross", 1)) == 1
    assert {place.stack for place in found.modules} == {"encoder", "decoder", "cross"}

    def loss(model: Any, row: int) -> float:
        with torch.no_grad():
            one = {name: value[row : row + 1] for name, value in batch.items()}
            return float(metric(model(**one), one))

    weight = model.model.decoder.layers[1].encoder_attn.out_proj.weight
    slopes = [slope(model, weight, 2, lambda m, row=row: loss(m, row), width=12) for row in range(2)]
    assert found.score(Head(1, 2, "cross")) == pytest.approx(sum(map(abs, slopes)) / 2, rel=1e-5)


def test_half_precision_has_scores_in_full() -> None:
    ids = inputs("llama")["input_ids"]
    half, full = (head_importance(build("llama", dtype=dtype), [ids]) for dtype in (torch.bfloat16, torch.float32))
    assert half.scores.dtype == torch.float64
    assert rank_correlation(half, full) > 0.9


def test_any_function_of_the_output_is_a_metric() -> None:
    model, batch = build("bert"), inputs("bert")
    found = head_importance(model, [batch], metric=lambda out, _: out[0].square().mean())
    assert found.scores.shape == (2, 6)
    assert bool((found.scores > 0).all())
    with pytest.raises(ManyheadsError, match="has no loss; valid"):
        head_importance(model, [batch])


def test_what_cannot_be_measured_is_said_and_nothing_is_changed() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    model.train()
    before = state(model)

    def stops(out: Any, batch: Any) -> torch.Tensor:
        raise KeyError("the user's own")

    cases: list[tuple[dict[str, Any], Any, str]] = [
        ({"method": "gradient"}, ManyheadsError, "'gradient' is not one of first-order, zero, mean, resample"),
        ({"metric": lambda out, _: out.logits.argmax(-1).float().mean()}, ManyheadsError, "method='zero'"),
        ({"metric": lambda out, _: out.logits.mean() * torch.nan}, ManyheadsError, "the metric is nan"),
        ({"metric": lambda out, _: out.logits}, ManyheadsError, r"shape \(2, 11, 97\); expected one number"),
        ({"metric": stops}, KeyError, "the user's own"),
        ({"heads": {7: [0]}}, ManyheadsError, "there is no layer 7; the model has 3 layers"),
        ({"heads": {1: [6]}}, ManyheadsError, "there is no head 6; layer 1 has 6 heads"),
        ({"heads": []}, ManyheadsError, "an empty list of heads"),
    ]
    for options, kind, match in cases:
        with pytest.raises(kind, match=match) as caught:
            head_importance(model, [ids], **options)
        assert "\n" not in str(caught.value)
        assert same(before, state(model))
    with pytest.raises(ManyheadsError, match="at least 2 are needed"):
        head_importance(model, [[5]])
    with pytest.raises(ManyheadsError, match="no text was given"):
        head_importance(model, [])
    with pytest.raises(BackendError, match="falcon"):
        head_importance(build("falcon-7b"), [ids])


def table(scores: list[list[float]], **more: Any) -> Importance:
    values = torch.tensor(scores, dtype=torch.float64)
    places = tuple(
        AttentionModule(f"layers.{row}", "", row, values.shape[1], values.shape[1]) for row in range(len(scores))
    )
    return Importance("zero", values, ~values.isnan(), 0.0, places, values[None], torch.ones(1), 0.0, **more)


def test_rankings_and_norms_by_hand() -> None:
    found = table([[3.0, 4.0], [0.5, 0.25]])
    assert found.ranking() == (Head(1, 1), Head(1, 0), Head(0, 0), Head(0, 1))
    assert torch.allclose(found.normalised()[0], torch.tensor([0.6, 0.8], dtype=torch.float64))
    # 0.5 / sqrt(0.3125) = 0.894..., 0.25 / sqrt(0.3125) = 0.447...
    assert found.ranking(by_layer=True) == (Head(1, 1), Head(0, 0), Head(0, 1), Head(1, 0))
    assert table([[1.0, torch.nan]]).heads() == (Head(0, 0),)


def test_rank_correlation_is_spearmans() -> None:
    assert ranks(torch.tensor([5.0, 1.0, 5.0, 9.0])).tolist() == [1.5, 0.0, 1.5, 3.0]
    one = table([[1.0, 2.0, 3.0], [4.0, 5.0, torch.nan]])
    assert rank_correlation(one, table([[10.0, 20.0, 30.0], [40.0, 50.0, 1.0]])) == pytest.approx(1)
    assert rank_correlation(one, table([[5.0, 4.0, 3.0], [2.0, 1.0, 0.0]])) == pytest.approx(-1)
    # 1 - 6 * sum(d^2) / (n (n^2 - 1)), d = (-1, 1, 0, 0, 0): 1 - 12 / 120
    assert rank_correlation(one, table([[2.0, 1.0, 3.0], [4.0, 5.0, 0.0]])) == pytest.approx(0.9)
    with pytest.raises(ManyheadsError, match="expected two measurements of one model"):
        rank_correlation(one, table([[1.0, 2.0, 3.0]]))
    with pytest.raises(ManyheadsError, match="no order"):
        rank_correlation(one, table([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]))


def test_scores_have_intervals_and_are_told_apart_over_all_heads() -> None:
    """Two heads on three windows, 1, 3, 5 and -1, 0, 2.5: Student's t of 2 degrees, P(|T| > t) = 1 - t / sqrt(2 + t²)."""
    by_batch = torch.tensor([[[1.0, -1.0]], [[3.0, 0.0]], [[5.0, 2.5]]], dtype=torch.float64)
    scores, share = by_batch.mean(0), torch.full((3,), 1 / 3, dtype=torch.float64)
    found = Importance("zero", scores, scores > -9, 0.0, (AttentionModule("a", "", 0, 2, 2),), by_batch, share, 0.0)
    low, high = found.interval()
    assert float(high[0, 0] - low[0, 0]) / 2 == pytest.approx(4.302653 * 2 / 3**0.5, rel=1e-5)
    t = [3 / (2 / 3**0.5), 0.5 / (1.8027756377 / 3**0.5)]  # the second one's s² is 3.25
    p = [1 - x / (2 + x * x) ** 0.5 for x in t]
    assert found.q_values()[0].tolist() == pytest.approx([2 * p[0], max(p[1], 2 * p[0])], rel=1e-6)
    alone = Importance(
        "zero", scores, scores > -9, 0.0, (AttentionModule("a", "", 0, 2, 2),), by_batch[:1], torch.ones(1), 0.0
    )
    assert torch.isnan(alone.q_values()).all()
    slopes = Importance(
        "first-order", scores, scores > 9, 0.0, (AttentionModule("a", "", 0, 2, 2),), by_batch, share, 0.0
    )
    with pytest.raises(ManyheadsError, match="first-order scores are sizes"):
        slopes.q_values()
