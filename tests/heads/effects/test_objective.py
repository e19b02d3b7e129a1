"""What a model of each kind is judged by: the batches read token by token, and the loss against transformers' own."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from manyheads.errors import ManyheadsError  # noqa: E402
from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.alignment import Frame  # noqa: E402
from manyheads.heads.effects import ablated, head_importance, text_objective  # noqa: E402
from support.tiny_transformers import build  # noqa: E402

AROUND = Frame((1,), (2,))
ROWS = [list(range(10, 30)), list(range(40, 60)), list(range(30, 50))]
MASK = 5


class Tokenizer:
    """What an objective asks a tokenizer for."""

    unk_token_id = 3

    def __init__(self, mask: int | None = None, sentinels: int = 0) -> None:
        self.mask_token_id, self._sentinels = mask, sentinels

    def convert_tokens_to_ids(self, words: list[str]) -> list[int]:
        known = {f"<extra_id_{n}>": 96 - n % 30 for n in range(self._sentinels)}
        return [known.get(word, self.unk_token_id) for word in words]


@pytest.mark.parametrize("kind", ["bert-masked-lm", "distilbert", "modernbert", "bert-pretraining"])
def test_a_masked_model_is_asked_for_what_is_hidden_and_framed(kind: str) -> None:
    model = build(kind, attention="sdpa")
    judge = text_objective(model, Tokenizer(MASK), around=AROUND, seed=3)
    batches = judge.batches(ROWS)
    assert (judge.name, judge.first_order) == ("hidden tokens", True)
    assert "no perplexity" in judge.said
    for row, batch in zip(ROWS, batches, strict=True):
        hidden = (batch["labels"][0] != -100).nonzero().flatten().tolist()
        assert len(hidden) == 3  # 15% of 20
        assert min(hidden) >= 1
        assert max(hidden) <= 20
        whole = torch.tensor([1, *row, 2])
        assert batch["labels"][0, hidden].tolist() == whole[hidden].tolist()
        assert batch["input_ids"][0, hidden].tolist() == [MASK] * 3
        shown = [place for place in range(22) if place not in hidden]
        assert batch["input_ids"][0, shown].tolist() == whole[shown].tolist()
    again = judge.batches(ROWS)
    assert all(torch.equal(a["labels"], b["labels"]) for a, b in zip(batches, again, strict=True))
    other = text_objective(model, Tokenizer(MASK), around=AROUND, seed=4).batches(ROWS)
    assert not all(torch.equal(a["labels"], b["labels"]) for a, b in zip(batches, other, strict=True))
    loss, count = judge.metric(model(**batches[0]), batches[0])
    with torch.no_grad():
        logits = model(batches[0]["input_ids"])[0][0].double().log_softmax(-1)
    asked = batches[0]["labels"][0] != -100
    assert count == 3
    assert loss.item() == pytest.approx(float(-logits[asked, batches[0]["labels"][0, asked]].mean()), rel=1e-5)
    for method in ("first-order", "zero"):
        found = head_importance(model, batches, metric=judge.metric, method=method)
        assert len(found.heads()) == sum(place.heads for place in found.modules)
        assert found.scores.abs().max() > 0


def test_a_bart_is_asked_for_what_its_encoder_did_not_see() -> None:
    model = build("bart", attention="sdpa")
    judge = text_objective(model, Tokenizer(MASK), around=AROUND)
    (batch, *_) = judge.batches(ROWS)
    assert judge.name == "hidden tokens"
    hidden = batch["labels"][0] != -100
    whole = torch.tensor([1, *ROWS[0], 2])
    assert int(hidden.sum()) == 3
    assert torch.equal(batch["input_ids"][0], whole.masked_fill(hidden, MASK))
    assert batch["decoder_input_ids"][0].tolist() == [model.config.decoder_start_token_id or 0, *whole[:-1].tolist()]
    assert judge.metric(model(**batch), batch)[0].item() == pytest.approx(model(**batch).loss.item(), rel=1e-5)


def test_a_t5_says_the_spans_behind_its_sentinels() -> None:
    """Putting the spans of the target in the place of their sentinels gives the text again."""
    model = build("t5", attention="sdpa")
    judge = text_objective(model, Tokenizer(sentinels=100), around=Frame((), (2,)))
    row = list(range(10, 50))
    (batch,) = judge.batches([row])
    labels = batch["labels"][0].tolist()
    assert sum(label != -100 for label in labels) == 6  # 15% of 40
    assert batch["decoder_input_ids"][0, 0] == 0
    # What the decoder reads is the target, one later: the last of it is only asked for.
    target = [*batch["decoder_input_ids"][0, 1:].tolist(), labels[-1]]
    spans: dict[int, list[int]] = {}
    for token, label in zip(target, labels, strict=True):
        if label == -100:
            last = spans.setdefault(token, [])
        else:
            assert token == label
            last.append(token)
    source = batch["input_ids"][0].tolist()
    assert [token for token in source if token in spans] == list(spans)
    assert [piece for token in source for piece in spans.get(token, [token])] == [*row, 2]
    assert judge.metric(model(**batch), batch)[0].item() == pytest.approx(model(**batch).loss.item(), rel=1e-5)


def test_an_encoder_decoder_without_either_says_the_text_again() -> None:
    model = build("t5", attention="sdpa")
    judge = text_objective(model, Tokenizer(), around=Frame((), (2,)))
    (batch,) = judge.batches(ROWS[:1])
    assert judge.name == "copying"
    assert batch["input_ids"].tolist() == [[*ROWS[0], 2]]
    assert batch["labels"].tolist() == [[*ROWS[0], -100]]
    assert batch["decoder_input_ids"][0, 1:].tolist() == ROWS[0]
    found = head_importance(model, judge.batches(ROWS), metric=judge.metric)
    assert {place.stack for place in found.modules} == {"encoder", "decoder", "cross"}


def test_a_causal_model_is_scored_behind_its_frame() -> None:
    model = build("llama", attention="sdpa")
    judge = text_objective(model, Tokenizer(), around=Frame((1,), ()))
    (batch, *_) = judge.batches(ROWS)
    assert (judge.name, judge.unit, batch["input_ids"].tolist()) == ("next token", "nats a token", [[1, *ROWS[0]]])
    labels = batch["input_ids"].clone()
    labels[0, 1] = -100
    loss, count = judge.metric(model(**batch), batch)
    assert (loss.item(), count) == (pytest.approx(model(**batch, labels=labels).loss.item(), rel=1e-5), 19)


def test_without_a_head_it_is_the_drift_of_the_output() -> None:
    model = build("bert", attention="sdpa")
    judge = text_objective(model, Tokenizer(MASK), around=AROUND)
    (batch, *_) = batches = judge.batches(ROWS)
    assert (judge.name, judge.first_order) == ("drift", False)
    with torch.no_grad():
        whole = model(**batch).last_hidden_state.double()
        assert float(judge.metric(model(**batch), batch)[0]) == pytest.approx(0, abs=1e-12)
        with ablated(model, [Head(1, 2)]):
            changed = model(**batch)
    by_hand = (changed.last_hidden_state - whole).square().sum() / ((whole - whole.mean(1)) ** 2).sum()
    assert float(judge.metric(changed, batch)[0]) == pytest.approx(float(by_hand), rel=1e-5)
    found = head_importance(model, batches[:1], metric=judge.metric, method="zero")
    assert found.baseline == pytest.approx(0, abs=1e-12)
    assert found.score(Head(1, 2)) == pytest.approx(float(by_hand), rel=1e-4)
    with pytest.raises(ManyheadsError, match=r"no first-order score: .* valid: zero, mean or resample"):
        judge.check("first-order")
    judge.check("zero")


def test_what_cannot_be_judged_is_one_line() -> None:
    model = build("bert-masked-lm")
    with pytest.raises(ManyheadsError, match="no mask token"):
        text_objective(model, Tokenizer(), around=AROUND)
    with pytest.raises(ManyheadsError, match="a window of 1 token; at least 2"):
        text_objective(model, Tokenizer(MASK), around=AROUND).batches([[7]])
    with pytest.raises(ManyheadsError, match="takes input_features and no input_ids"):
        text_objective(build("whisper"), Tokenizer(), around=AROUND)
    config: Any = transformers.BertConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48
    )
    with pytest.raises(ManyheadsError, match="its config lets it see that token"):
        text_objective(transformers.BertLMHeadModel(config), Tokenizer(MASK), around=AROUND)
    with pytest.raises(ManyheadsError, match="returns no last hidden states"):
        text_objective(build("bert-classifier"), Tokenizer(MASK), around=AROUND).batches(ROWS)
