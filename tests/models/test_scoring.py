"""Loss and perplexity, against arithmetic by hand and against the loss that transformers computes."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace

import pytest

from manyheads.errors import ManyheadsError
from manyheads.models.load.model import load
from manyheads.models.load.text import shipped_text
from manyheads.models.scoring import Scores, score, shuffled, token_ids

torch = pytest.importorskip("torch")


class Fake:
    """A model that is sure of the successor of each token, as far as `sharpness` says: 0 is a uniform guess."""

    device = "cpu"

    def __init__(self, vocabulary: int, sharpness: float = 0.0) -> None:
        self.vocabulary, self.sharpness, self.seen = vocabulary, sharpness, []

    def __call__(self, *, input_ids, use_cache: bool):
        assert not use_cache
        self.seen.append(input_ids[0].tolist())
        follower = torch.nn.functional.one_hot((input_ids + 1) % self.vocabulary, self.vocabulary)
        return SimpleNamespace(logits=self.sharpness * follower.float())


def test_a_uniform_guess_is_as_perplexed_as_there_are_tokens() -> None:
    found = score(Fake(50), list(range(30)), window=10)
    assert found.perplexity == pytest.approx(50)
    assert found.counts == (9, 9, 9)
    assert found.scored == 27


def test_the_next_token_is_scored_and_not_the_one_that_is_read() -> None:
    sharp = Fake(50, sharpness=3.0)
    by_hand = math.log(math.exp(3) + 49) - 3
    assert score(sharp, list(range(40)), window=20).loss == pytest.approx(by_hand, rel=1e-6)
    assert score(sharp, list(range(40)), window=20, bos=49).loss == pytest.approx(by_hand, rel=1e-6)


def test_windows_do_not_overlap_and_a_last_token_alone_is_left_out() -> None:
    fake = Fake(50)
    found = score(fake, list(range(9)), window=4)
    assert fake.seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found.counts == (3, 3)
    score(fake, list(range(6)), window=4, bos=49)
    assert fake.seen[2:] == [[49, 0, 1, 2, 3], [49, 4, 5]]


def test_a_mean_over_tokens_is_not_a_mean_over_windows() -> None:
    assert Scores((1.0, 4.0), (3, 1), 0.0).loss == pytest.approx(7 / 4)


def test_a_loss_too_large_for_a_float_is_infinite_perplexity() -> None:
    assert Scores((1e6,), (1,), 0.0).perplexity == math.inf


def test_the_control_has_the_same_tokens_in_another_order_that_the_seed_decides() -> None:
    ids = [i % 7 for i in range(100)]
    mixed = shuffled(ids, 1)
    assert Counter(mixed) == Counter(ids)
    assert mixed != ids
    assert shuffled(ids, 1) == mixed != shuffled(ids, 2)


@pytest.fixture(scope="module")
def llama(tiny):
    folder = str(tiny("llama"))
    return load(folder)


@pytest.mark.parametrize("bos", [None, 1])
def test_one_window_is_the_loss_that_transformers_computes(llama, bos: int | None) -> None:
    ids = token_ids(llama.tokenizer, shipped_text().text, most=40)
    front = [] if bos is None else [bos]
    tokens = torch.tensor([front + ids])
    labels = tokens.clone()
    labels[0, : len(front) + 1] = -100  # the first token of the text is not scored
    theirs = llama.model(input_ids=tokens, labels=labels).loss.item()
    assert score(llama.model, ids, window=40, bos=bos).loss == pytest.approx(theirs, rel=1e-5)


def test_tokens_are_those_of_the_text_and_nothing_that_a_tokenizer_adds(llama) -> None:
    assert llama.tokenizer.decode(token_ids(llama.tokenizer, "the cat sat")) == "the cat sat"
    assert token_ids(llama.tokenizer, "the cat sat on the mat", most=2) == token_ids(llama.tokenizer, "the cat")


def test_a_text_of_one_token_is_too_short(llama) -> None:
    with pytest.raises(ManyheadsError, match="x is 1 token long; at least 2"):
        token_ids(llama.tokenizer, "a", named="x")
