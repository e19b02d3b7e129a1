"""Loss and perplexity of a model on a text, and on the same tokens shuffled.

The text is cut into windows that do not overlap, and in each every token but the first is scored: it has nothing to be
guessed from. Whether a beginning-of-text token stands in front is said, never left to the tokenizer: tools differ in it,
and the figures with it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from manyheads.errors import ManyheadsError
from manyheads.models.load.text import Reading
from manyheads.models.load.tokenizing import check_texts, tokenized

__all__ = ["GOES_ON", "MOST_WINDOW", "Scores", "first_tokens", "score", "shuffled", "token_ids"]

MOST_WINDOW = 512
GOES_ON = "the text goes on: its first {tokens:,} tokens are read (tokens=)"
_CHARACTERS_A_TOKEN = 64


@dataclass(frozen=True)
class Scores:
    """Mean negative log-likelihood of the scored tokens in nats, by window and over all.

    `losses[i]` is the mean of window i over its `counts[i]` scored tokens.
    """

    losses: tuple[float, ...]
    counts: tuple[int, ...]
    seconds: float

    @property
    def scored(self) -> int:
        """Tokens that were scored."""
        return sum(self.counts)

    @property
    def loss(self) -> float:
        """The mean over all scored tokens, in nats a token; not finite where the model's output was not."""
        return math.fsum(loss * n for loss, n in zip(self.losses, self.counts, strict=True)) / self.scored

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that is no number of this machine's."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf


def token_ids(tokenizer: Any, text: str, *, most: int = 0, named: str = "the text") -> list[int]:
    """The tokens of `text` without any that the tokenizer would add, the first `most` of them (0: all).

    ManyheadsError where there are fewer than two, since the first is never scored.
    """
    ids = list(tokenized(tokenizer, text, add_special_tokens=False, verbose=False)["input_ids"])
    if len(ids) < 2:
        raise ManyheadsError(f"{named} is {len(ids)} token{'' if len(ids) == 1 else 's'} long; at least 2 are needed")
    return ids[:most] if most else ids


def first_tokens(tokenizer: Any, reading: Reading, most: int) -> tuple[list[int], bool]:
    """The first `most` tokens of a text, and whether it goes on behind them.

    ManyheadsError, naming the text, where there are fewer than two.
    """
    named = reading.name
    text = reading.text[: _CHARACTERS_A_TOKEN * most]  # a large file is not tokenised for its beginning
    if not reading.shipped:  # ours was tried when the tokenizer was loaded
        check_texts(tokenizer, [text])
    ids = token_ids(tokenizer, text, named=named)
    return ids[:most], len(ids) > most or len(text) < len(reading.text)


def shuffled(ids: Sequence[int], seed: int) -> list[int]:
    """The same tokens in an order that `seed` decides: the control, which has the words and none of the text."""
    mixed = list(ids)
    random.Random(seed).shuffle(mixed)  # noqa: S311  nothing secret hangs on it
    return mixed


def score(
    model: Any, ids: Sequence[int], *, window: int, bos: int | None = None, say: Callable[[int, int], None] = lambda *_: None
) -> Scores:  # fmt: skip
    """The losses of a causal language model on `ids`, in windows of `window` tokens, a `bos` token before each if given.

    `say(done, all)` is told the tokens read so far. A last window of one token is left out.
    """
    import torch

    began = time.perf_counter()
    losses, counts = [], []
    for start in range(0, len(ids), window):
        part = list(ids[start : start + window])
        if len(part) < 2:
            break
        front = [] if bos is None else [bos]
        tokens = torch.tensor([front + part], device=model.device)
        with torch.inference_mode():
            logits = model(input_ids=tokens, use_cache=False).logits[0, len(front) : -1]
            losses.append(torch.nn.functional.cross_entropy(logits.float(), tokens[0, len(front) + 1 :]).item())
        counts.append(len(part) - 1)
        say(min(start + window, len(ids)), len(ids))
    return Scores(tuple(losses), tuple(counts), time.perf_counter() - began)
