"""Hard-concrete gates: the distribution, what training keeps, groups, rest, the four quadrants, and a model left as it was."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from manyheads.errors import ManyheadsError  # noqa: E402
from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.attention_modules import AttentionModule  # noqa: E402
from manyheads.heads.effects import Importance, ablate_heads, ablated  # noqa: E402
from manyheads.heads.gates import QUADRANTS, Convergence, Gates, gated, quadrants, train_gates  # noqa: E402
from manyheads.heads.gates.hard_concrete import drawn, likely, open_probability  # noqa: E402
from support.tiny_transformers import build, inputs, logits  # noqa: E402

UNIFORM = torch.arange(0.5, 100_000) / 100_000  # every quantile once, in place of chance


@pytest.mark.parametrize("a", [-3.0, -0.5, 0.0, 2.0])
def test_gates_are_zero_and_one_as_often_as_louizos_et_al_say(a: float) -> None:
    """arXiv 1712.01312, section 2.2: s has the distribution function sigmoid(BETA logit(s) - a), stretched to (-0.1, 1.1)."""
    z = drawn(torch.tensor(a), UNIFORM)
    closed = 1 / (1 + math.exp(-(2 / 3 * math.log(0.1 / 1.1) - a)))
    whole = 1 - 1 / (1 + math.exp(-(2 / 3 * math.log(1.1 / 0.1) - a)))
    assert float((z == 0).double().mean()) == pytest.approx(closed, abs=2e-5)
    assert float((z == 1).double().mean()) == pytest.approx(whole, abs=2e-5)
    assert float(open_probability(torch.tensor(a))) == pytest.approx(1 - closed, rel=1e-5)


def test_gates_without_noise() -> None:
    # sigmoid(0) 1.2 - 0.1 = 0.5; sigmoid(log 11) 1.2 - 0.1 = 1; sigmoid(-log 11) 1.2 - 0.1 = 0
    assert likely(torch.tensor([0.0, 5.0, -5.0, math.log(3.0)])).tolist() == pytest.approx([0.5, 1.0, 0.0, 0.8])
    a = torch.tensor(0.3, requires_grad=True)
    drawn(a, torch.tensor([0.0, 1.0, 0.5])).sum().backward()
    assert torch.isfinite(a.grad)


def planted(name: str = "llama", keep: tuple[int, ...] = (2,)) -> tuple[Any, Any, Any]:
    """A model of which only some heads of layer 1 do anything, and a metric that wants what the model says."""
    model, ids = build(name), inputs(name, batch=2)["input_ids"]
    for number, layer in enumerate(model.model.layers):
        for head in range(6):
            if number != 1 or head not in keep:
                layer.self_attn.o_proj.weight.data[:, head * 10 : (head + 1) * 10] = 0
    wanted = logits(model, {"input_ids": ids}).log_softmax(-1).exp()
    return model, [ids], lambda out, _: -(wanted * out.logits.log_softmax(-1)).sum(-1).mean()


def test_the_heads_that_do_something_are_kept_and_the_others_closed() -> None:
    model, batches, metric = planted(keep=(2, 5))
    model.requires_grad_(False)
    found = train_gates(model, batches, penalty=0.005, steps=160, metric=metric)
    assert set(found.kept()) == {Head(1, 2), Head(1, 5)}
    assert len(found.closed()) == 16
    assert found.convergence.converged, found.convergence.text
    assert found.convergence.text.startswith("converged: 0 of 18 gates undecided")
    assert found.loss_without == pytest.approx(found.baseline, abs=1e-5)
    assert len(found.losses) == len(found.expected) == 160
    assert found.expected[0] == pytest.approx(18 / (1 + math.exp(-(2 - 2 / 3 * math.log(1 / 11)))), rel=1e-5)
    assert found.expected[-1] < 3


def test_a_group_opens_and_closes_as_one() -> None:
    model, batches, metric = planted(keep=(2, 5))  # query heads 0-2 and 3-5 share keys and values
    found = train_gates(model, batches, penalty=0.001, steps=150, per="group", metric=metric)
    assert found.convergence.gates == 6
    for row in found.values:
        assert len(set(row[:3].tolist())) == len(set(row[3:].tolist())) == 1
    assert set(found.kept()) == {Head(1, head) for head in range(6)}


def test_a_heavier_penalty_keeps_fewer() -> None:
    model, ids = build("gpt2"), inputs("gpt2")["input_ids"]
    kept = [len(train_gates(model, [ids], penalty=penalty, steps=100).kept()) for penalty in (0.0, 0.05, 5.0)]
    assert kept[0] > kept[1] > kept[2] == 0


def test_too_few_steps_are_said_not_to_have_come_to_rest() -> None:
    model, batches, metric = planted()
    found = train_gates(model, batches, penalty=0.005, steps=30, metric=metric)
    assert not found.convergence.converged
    assert found.convergence.text.startswith("not converged: ")
    assert f"{found.convergence.drift:+.2f} open heads" in found.convergence.text
    assert found.convergence.drift < -0.18  # 1% of 18 heads


def test_a_few_steps_cannot_have_come_to_rest() -> None:
    """From 2 to -ln 11, where a gate is 0, is 4.4: 22 steps of 0.1 go half the way, however high the price or low."""
    model, ids = build("llama"), inputs("llama")["input_ids"]
    early, late = (train_gates(model, [ids], penalty=100.0, steps=steps) for steps in (21, 60))
    still = train_gates(
        model, [ids], penalty=0.0, steps=8, metric=lambda out, _: out.logits.square().mean() * 0
    ).convergence
    for found in (early.convergence, still):
        assert not found.converged
        assert "less than half the way to closed (at least 22 expected)" in found.text
    assert (still.undecided, still.drift) == (0, 0)
    assert not early.closed()
    assert early.convergence.more.endswith("try 279 steps more: steps=300")
    assert "half the way" not in late.convergence.text
    assert repr(late).startswith("Gates(18 of 18 heads closed at a penalty of 100 a head, ")
    assert "\n" not in repr(late)


@pytest.mark.parametrize("name", ["t5", "whisper", "bert-masked-lm", "gemma2", "jamba"])
def test_every_family_has_gates(name: str) -> None:
    model, batch = build(name), inputs(name)
    metric = lambda out, _: out[0].square().mean()  # noqa: E731
    found = train_gates(model, [batch], penalty=1.0, steps=40, metric=metric)
    heads = sum(place.heads for place in found.modules)
    assert len(found.kept()) + len(found.closed()) == heads
    assert found.expected[-1] < found.expected[0]


def test_gates_that_are_closed_are_heads_taken_away() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    found = train_gates(model, [ids], penalty=0.05, steps=60)
    assert found.closed()
    with ablated(model, found.closed()):
        wanted = logits(model, {"input_ids": ids})
    with gated(model, found):
        assert torch.allclose(logits(model, {"input_ids": ids}), wanted, atol=1e-5)


def test_the_same_seed_trains_the_same_gates() -> None:
    model, ids = build("gpt2"), inputs("gpt2")["input_ids"]
    one, same, other = (train_gates(model, [ids], penalty=0.01, steps=12, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.a, same.a)
    assert not torch.equal(one.a, other.a)


def kept_of(model: Any) -> Any:
    return (
        [module.training for module in model.modules()],
        [p.requires_grad for p in model.parameters()],
        [id(p.grad) for p in model.parameters()],
        model.config._attn_implementation,
    )


def test_a_frozen_model_is_left_as_it_was() -> None:
    model, ids = build("llama").train(), inputs("llama")["input_ids"]
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    model.model.embed_tokens.weight.requires_grad_(False)
    before, weights = kept_of(model), [p.detach().clone() for p in model.parameters()]
    train_gates(model, [ids], penalty=0.01, steps=8)
    with pytest.raises(ManyheadsError, match="the metric is nan"):
        train_gates(model, [ids], penalty=0.01, steps=8, metric=lambda out, _: out.logits.mean() * torch.nan)
    assert kept_of(model) == before
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_weights_that_ask_are_trained_too_and_put_back_after_an_error() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    model.requires_grad_(False)
    with pytest.raises(ManyheadsError, match=r"no parameter of the model asks"):
        train_gates(model, [ids], penalty=0.01, steps=8, weight_rate=1e-3)
    trained = model.model.layers[1].mlp.up_proj.weight.requires_grad_(True)
    before, weights = kept_of(model), [p.detach().clone() for p in model.parameters()]
    calls = 0

    def fails_later(out: Any, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 5:
            assert not torch.equal(trained, weights[[id(p) for p in model.parameters()].index(id(trained))])
            raise RuntimeError("in the middle")
        return out.logits.square().mean()

    with pytest.raises(RuntimeError, match="in the middle"):
        train_gates(model, [ids], penalty=0.01, steps=8, weight_rate=1e-2, metric=fails_later)
    assert kept_of(model) == before
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    found = train_gates(model, [ids], penalty=0.0, steps=30, weight_rate=1e-2)
    assert kept_of(model) == before
    changed = [not torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True)]
    assert sum(changed) == 1
    assert found.loss_with < found.baseline


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_trains_the_same_gates(reentrant: bool) -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    model.requires_grad_(False).lm_head.weight.requires_grad_(True)
    wanted = train_gates(model, [ids], penalty=0.01, steps=8, weight_rate=1e-9)
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})
    found = train_gates(model, [ids], penalty=0.01, steps=8, weight_rate=1e-9)
    assert torch.allclose(found.a, wanted.a, atol=1e-3)


def test_what_makes_no_sense_is_refused() -> None:
    model, ids = build("gpt2"), inputs("gpt2")["input_ids"]
    for options, match in (
        ({"penalty": -1.0}, "penalty -1.0"),
        ({"penalty": math.nan}, "penalty nan"),
        ({"rate": 0.0}, "rate 0.0"),
        ({"penalty": math.inf}, "penalty inf"),
        ({"rate": math.inf}, "rate inf"),
        ({"weight_rate": math.inf}, "weight_rate inf"),
        ({"steps": 3}, "steps 3: a whole number of at least 8"),
        ({"steps": 8.5}, "steps 8.5: a whole number of at least 8"),
        ({"per": "layer"}, "per='layer' is not one of 'head', 'group'"),
        ({"metric": lambda out, _: out.logits.argmax(-1).float().mean()}, "does not pass gradients back"),
    ):
        with pytest.raises(ManyheadsError, match=match) as caught:
            train_gates(model, [ids], **{"penalty": 0.1, "steps": 8, **options})
        assert "\n" not in str(caught.value)
    with torch.no_grad(), pytest.raises(ManyheadsError, match=r"called under torch\.no_grad"):
        train_gates(model, [ids], penalty=0.1)


def test_gates_of_another_model_are_refused() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    found = train_gates(model, [ids], penalty=0.1, steps=8)
    gpt2 = build("gpt2")
    with (
        pytest.raises(ManyheadsError, match=r"of another model: GPT2LMHeadModel has no attention model\.layers\.0"),
        gated(gpt2, found),
    ):
        logits(gpt2, {"input_ids": ids})
    narrow = build("llama", num_attention_heads=3, num_key_value_heads=1)
    with pytest.raises(ManyheadsError, match="has 3 heads, and its gates are of 6"), gated(narrow, found):
        logits(narrow, {"input_ids": ids})
    assert narrow.config._attn_implementation == gpt2.config._attn_implementation == "eager"


def test_attention_that_did_not_run_while_gates_were_trained_has_none() -> None:
    """Trained on T5's encoder alone, its decoder stays whole; what is closed in the encoder is taken away."""
    model, batch = build("t5"), inputs("t5")
    encoder = model.get_encoder()
    metric = lambda out, _: out[0].square().mean()  # noqa: E731
    found = train_gates(encoder, [batch["input_ids"]], penalty=5.0, steps=40, metric=metric)
    assert found.closed()
    with gated(encoder, found):
        alone = logits(model, batch)
    closed = [head._replace(stack="encoder") for head in found.closed()]
    with ablated(model, closed):
        assert torch.allclose(logits(model, batch), alone, atol=1e-5)


def test_needed_and_kept_are_two_questions() -> None:
    modules = (AttentionModule("layers.0", "", 0, 4, 4),)
    scores = torch.tensor([[0.5, 0.01, 0.5, -0.3]], dtype=torch.float64)
    values = torch.tensor([[1.0, 0.7, 0.0, 0.0]], dtype=torch.float64)
    ablated = Importance("zero", scores, scores > -9, 0.0, modules, scores[None], torch.ones(1), 0.0)
    rest = Convergence(True, 0, 4, 0.0, "converged")
    gates = Gates(values, values, values, modules, "head", 0.1, 0.0, 0.0, 0.0, (), (), rest, 0.0)
    assert quadrants(gates, ablated) == {
        Head(0, 0): "needed and kept", Head(0, 1): "kept", Head(0, 2): "needed", Head(0, 3): "neither",
    }  # fmt: skip
    assert set(quadrants(gates, ablated).values()) == set(QUADRANTS)
    assert quadrants(gates, ablated, tolerance=0.001)[Head(0, 1)] == "needed and kept"
    with pytest.raises(ManyheadsError, match="0 heads were really taken away and 4 have gates"):
        quadrants(gates, replace(ablated, exact=scores < -9))
    with pytest.raises(ManyheadsError, match="two different models"):
        quadrants(gates, replace(ablated, modules=(replace(modules[0], layer=1),)))


def test_a_spare_copy_is_not_needed_alone() -> None:
    """Two heads that do the same: either may go, not both, so one is kept and none is needed."""
    model, batches, _ = planted(keep=(2,))
    layer = model.model.layers[1].self_attn
    rows = {head: slice(head * 10, (head + 1) * 10) for head in range(6)}
    layer.q_proj.weight.data[rows[1]] = layer.q_proj.weight.data[rows[2]]
    layer.o_proj.weight.data[:, rows[2]] *= 8
    layer.o_proj.weight.data[:, rows[1]] = layer.o_proj.weight.data[:, rows[2]]
    wanted = logits(model, {"input_ids": batches[0]})
    scale = wanted.square().mean()

    def metric(out: Any, _: Any) -> torch.Tensor:
        """The part of the output that is lost."""
        return (out.logits - wanted).square().mean() / scale

    found = train_gates(model, batches, penalty=0.02, steps=200, metric=metric)
    ablated = ablate_heads(model, batches, metric=metric)
    assert set(found.kept()) <= {Head(1, 1), Head(1, 2)}
    assert found.kept()
    tolerance = 2 * max(ablated.score(Head(1, 1)), ablated.score(Head(1, 2)))
    said = quadrants(found, ablated, tolerance=tolerance)
    assert "needed" not in said.values()
    assert {said[head] for head in found.kept()} == {"kept"}
