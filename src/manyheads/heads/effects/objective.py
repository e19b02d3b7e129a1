"""What a model can be judged by on plain text, of whatever kind it is: batches, and the loss on them.

    judge = text_objective(model, tokenizer, around=frame(tokenizer))
    head_importance(model, judge.batches([ids[:128], ids[128:256]]), metric=judge.metric)

| model | objective | asked |
|---|---|---|
| causal language model | next token | each token of the text but the first |
| masked language model | hidden tokens | 15% of the tokens, behind the mask token |
| encoder-decoder with a mask token (BART) | hidden tokens | the same, of its decoder |
| encoder-decoder with sentinels (T5) | hidden tokens | the same, spans behind sentinels |
| other encoder-decoder | copying | each token of the text that the encoder read |
| no language head | drift | relative mean squared error of the last hidden states, against those of the whole model |

A loss of hidden tokens is no perplexity: both sides of a token are seen. Drift has no labels, and where no head is missing it
is 0 and flat, so it has no first-order score.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.alignment import Frame
from manyheads.heads.batches import Batch, as_batches
from manyheads.heads.effects.metrics import IGNORED, Metric, is_causal, next_token_loss, summed_cross_entropy
from manyheads.heads.model_spec import describe
from manyheads.models.door.door import open_door

__all__ = ["DRIFT", "HIDDEN_SHARE", "Objective", "reads_with_decoder", "text_objective"]

HIDDEN_SHARE = 0.15
"""Of the tokens of a window, as in BERT's training (arXiv 1810.04805, section 3.1) and T5's (arXiv 1910.10683, 3.1.4)."""
DRIFT = "drift"
_NATS = "nats a token"


@dataclass(frozen=True, eq=False)
class Objective:
    """How a model is judged.

    name         "next token", "hidden tokens", "copying" or "drift"
    said         what the number is, in words
    unit         of the number
    metric       for `importance`, `ablation` and others: a function of (outputs, batch), lower is better
    first_order  whether there is a first-order score
    """

    name: str
    said: str
    unit: str
    metric: Metric
    first_order: bool
    _make: _Maker

    def batches(self, rows: Iterable[Sequence[int]]) -> list[Batch]:
        """A batch of each row, tokens of the text without what stands around them.

        Tokens are hidden by the seed and the number of the row: the same ones each time. Raises ManyheadsError for rows of
        fewer than two tokens.
        """
        return [self._make(row, number) for number, row in enumerate(rows)]

    def check(self, method: str) -> None:
        """ManyheadsError, naming what would do, where `method` of `heads.effects.importance` cannot be had."""
        if method == "first-order" and not self.first_order:
            raise ManyheadsError(
                "there is no first-order score: it has no language head, so it is judged by the relative mean squared error "
                "of its last hidden states, which is 0 and flat where no head is missing; valid: zero, mean or resample, which take each head out"
            )


def text_objective(model: Any, tokenizer: Any, *, around: Frame, seed: int = 0) -> Objective:
    """The objective for a model of transformers that reads tokens; `around`: what stands around each window.

    Raises ManyheadsError, one line, for a model that reads no tokens, and a masked one whose tokenizer has no mask token.
    """
    if model.main_input_name != "input_ids":
        raise ManyheadsError(f"the model takes {model.main_input_name} and no input_ids, so it has no loss on text")
    both = bool(getattr(model.config, "is_encoder_decoder", False))
    if model.get_output_embeddings() is None:
        return _drift(model, around, both=both)
    if is_causal(model) and not both:
        if not _one_sided(model):
            raise ManyheadsError(
                f"{type(model).__name__} predicts the next token, and its config lets it see that token"
            )
        metric = functools.partial(next_token_loss, before=len(around.before), after=len(around.after))
        said = "mean negative log-likelihood of each token but the first of its window"
        return Objective("next token", said, _NATS, metric, first_order=True, _make=_Maker(model, around))
    mask = getattr(tokenizer, "mask_token_id", None)
    if both:
        return _of_decoder(model, tokenizer, around, mask, seed)
    if mask is None:
        raise ManyheadsError("its tokenizer has no mask token, and an encoder predicts no next one")
    return _hidden(_Masked(model, around, seed, int(mask)), "the model sees both sides, so this is no perplexity")


def _one_sided(model: Any) -> bool:
    try:
        return describe(model).stack.decoder is not None
    except ManyheadsError:  # none of our families: its class is what is known of it
        return True


def _hidden(make: _Maker, more: str) -> Objective:
    said = f"mean negative log-likelihood of {HIDDEN_SHARE:.0%} of the tokens, which are hidden; {more}"
    return Objective("hidden tokens", said, "nats a hidden token", hidden_loss, first_order=True, _make=make)


def hidden_loss(outputs: Any, batch: Batch) -> tuple[Tensor, float]:
    """The mean negative log-likelihood of the labels of a batch, which stand where they are asked for, and their number."""
    logits = getattr(outputs, "logits", None)
    if logits is None:
        logits = getattr(outputs, "prediction_logits", None)  # BertForPreTraining
    if logits is None:
        raise ManyheadsError("it returns no logits of its tokens, so its text has no loss")
    asked = batch["labels"] != IGNORED
    # Where logits come flat and for the labels alone, as ModernBERT's can, they are in this order already.
    rows = logits[asked] if logits.dim() == 3 else logits
    count = int(asked.sum())
    return summed_cross_entropy(rows[None], batch["labels"][asked][None]) / count, count


def _of_decoder(model: Any, tokenizer: Any, around: Frame, mask: int | None, seed: int) -> Objective:
    sentinels = _sentinels(tokenizer)
    if mask is not None:
        return _hidden(
            _Restored(model, around, seed, int(mask)), "the encoder reads the rest, the decoder says the text"
        )
    if sentinels:
        return _hidden(_Spans(model, around, seed, sentinels), "the encoder reads the rest, the decoder says these")
    said = "mean negative log-likelihood of the text that the encoder reads, when the decoder has to say it again"
    return Objective("copying", said, _NATS, hidden_loss, first_order=True, _make=_Copied(model, around))


def _sentinels(tokenizer: Any) -> list[int]:
    """The tokens that stand for hidden spans in T5's training, as many as the tokenizer knows."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    known = tokenizer.convert_tokens_to_ids([f"<extra_id_{n}>" for n in range(100)])
    found = [number for number in known if number is not None and number != unknown]
    return found if len(found) == len(known) else []


class _Maker:
    """Makes a batch of tokens of a text: the frame around them, and what each kind of model needs besides."""

    def __init__(self, model: Any, around: Frame, seed: int = 0) -> None:
        self._model, self._around, self._seed = model, around, seed

    def __call__(self, row: Sequence[int], number: int) -> Batch:
        if len(row) < 2:
            raise ManyheadsError(f"a window of {len(row)} token{'s' * (len(row) != 1)}; at least 2 are needed")
        return self.batch(list(row), number)

    def batch(self, row: list[int], number: int) -> Batch:  # noqa: ARG002  others draw by it
        return {"input_ids": self.framed(row)}

    def framed(self, row: Sequence[int]) -> Tensor:
        return torch.tensor([[*self._around.before, *row, *self._around.after]])

    def labelled(self, row: Sequence[int], at: Iterable[int]) -> Tensor:
        """Labels for the framed row: its tokens `at`, and none elsewhere."""
        ids = self.framed(row)
        labels = torch.full_like(ids, IGNORED)
        for place in at:
            labels[0, len(self._around.before) + place] = row[place]
        return labels

    def drawn(self, row: Sequence[int], number: int) -> list[int]:
        """The places of a row that are hidden, at least one."""
        draw = random.Random(self._seed + number)  # noqa: S311  nothing secret hangs on it
        return sorted(draw.sample(range(len(row)), max(round(HIDDEN_SHARE * len(row)), 1)))


class _Masked(_Maker):
    def __init__(self, model: Any, around: Frame, seed: int, mask: int) -> None:
        super().__init__(model, around, seed)
        self._mask = mask

    def batch(self, row: list[int], number: int) -> Batch:
        labels = self.labelled(row, self.drawn(row, number))
        ids = self.framed(row).masked_fill(labels != IGNORED, self._mask)
        return {"input_ids": ids, "labels": labels}


class _Restored(_Masked):
    """The decoder says the whole text, reading it one token later, and is asked for what the encoder did not see."""

    def batch(self, row: list[int], number: int) -> Batch:
        return super().batch(row, number) | {"decoder_input_ids": shifted(self._model, self.framed(row))}


class _Copied(_Maker):
    def batch(self, row: list[int], number: int) -> Batch:  # noqa: ARG002
        return reads_with_decoder(self._model, self.framed(row)) | {"labels": self.labelled(row, range(len(row)))}


class _Spans(_Maker):
    """T5's: a sentinel in place of each hidden span; the decoder says sentinel, span, sentinel, span ... and is asked for
    the tokens of the spans. Source: arXiv 1910.10683, section 3.1.4."""

    def __init__(self, model: Any, around: Frame, seed: int, sentinels: Sequence[int]) -> None:
        super().__init__(model, around, seed)
        self._sentinels = sentinels

    def drawn(self, row: Sequence[int], number: int) -> list[int]:
        """As many as there are sentinels at most: no hidden token may be without one."""
        places = super().drawn(row, number)
        return places[: len(self._sentinels)]

    def batch(self, row: list[int], number: int) -> Batch:
        hidden = set(self.drawn(row, number))
        source: list[int] = []
        target: list[int] = []
        labels: list[int] = []
        spans = 0
        for place, token in enumerate(row):
            if place not in hidden:
                source.append(token)
                continue
            if place - 1 not in hidden:
                source.append(self._sentinels[spans])
                target.append(self._sentinels[spans])
                labels.append(IGNORED)
                spans += 1
            target.append(token)
            labels.append(token)
        decoder = shifted(self._model, torch.tensor([target]))
        return {"input_ids": self.framed(source), "decoder_input_ids": decoder, "labels": torch.tensor([labels])}


def shifted(model: Any, ids: Tensor) -> Tensor:
    """`ids` (b, n) one token later, behind the token that the decoder of `model` starts with."""
    start = getattr(model.config, "decoder_start_token_id", None) or 0
    return torch.cat((ids.new_full((len(ids), 1), start), ids[:, :-1]), 1)


def reads_with_decoder(model: Any, ids: Tensor) -> Batch:
    """A batch of tokens (b, n); a decoder that stands behind an encoder reads the same text, one token later."""
    if not getattr(model.config, "is_encoder_decoder", False):
        return {"input_ids": ids}
    return {"input_ids": ids, "decoder_input_ids": shifted(model, ids)}


class _Read(_Maker):
    """Tokens alone, and `drift` told what the whole model makes of them."""

    def __init__(self, model: Any, around: Frame, drift: _Drift) -> None:
        super().__init__(model, around)
        self._drift = drift

    def batch(self, row: list[int], number: int) -> Batch:  # noqa: ARG002
        found = reads_with_decoder(self._model, self.framed(row))
        self._drift.learn(self._model, found)
        return found


def _drift(model: Any, around: Frame, *, both: bool) -> Objective:
    whose = "the decoder's last hidden states" if both else "the last hidden states"
    said = (
        f"squared distance of {whose} from those of the whole model, as a share of their variance over the tokens of "
        "a window (0: the same, 1: as far off as their mean)"
    )
    drift = _Drift()
    return Objective(DRIFT, said, "of the variance", drift, first_order=False, _make=_Read(model, around, drift))


class _Drift:
    """The distance from what the whole model gave on the same tokens."""

    def __init__(self) -> None:
        self._whole: dict[bytes, Tensor] = {}

    def learn(self, model: Any, batch: Batch) -> None:
        (given,) = as_batches(model, [batch])
        with torch.no_grad(), open_door(model, mode="eval"):
            self._whole[_key(batch)] = _states(model(**given))

    def __call__(self, outputs: Any, batch: Batch) -> tuple[Tensor, float]:
        found, whole = _states(outputs), self._whole[_key(batch)]
        variance = (whole - whole.mean(1, keepdim=True)).square().sum()
        if not variance > 0:
            raise ManyheadsError("the last hidden states are the same for all tokens, so no drift can be told")
        return (found - whole).square().sum() / variance, whole.shape[1]


def _key(batch: Batch) -> bytes:
    return bytes(batch["input_ids"].cpu().numpy().tobytes())


def _states(outputs: Any) -> Tensor:
    found = getattr(outputs, "last_hidden_state", None)
    if found is None:
        raise ManyheadsError(
            "it has no language head and returns no last hidden states, so it cannot be judged by text"
        )
    states: Tensor = found.double()
    return states
