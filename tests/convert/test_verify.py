"""What a conversion is said to lose, held against losses worked out by hand on models whose logits are known."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from manyheads.convert.calibration_text import documentation  # noqa: E402
from manyheads.convert.held_out import HeldOut, source_code  # noqa: E402
from manyheads.convert.verify import _kinds, _rare, embedding_cosine, probes, verify  # noqa: E402

VOCABULARY = 8


class Known:
    """A model whose next-token distribution is the same everywhere, or that repeats what followed the token before."""

    device = torch.device("cpu")

    def __init__(
        self, favourite: int | None = None, odds: float = 1.0, *, copies: bool = False, vocabulary: int = VOCABULARY
    ) -> None:
        self.favourite, self.odds, self.copies, self.vocabulary = favourite, odds, copies, vocabulary

    def __call__(self, input_ids: torch.Tensor, **_: Any) -> Any:
        logits = torch.zeros(*input_ids.shape, self.vocabulary)
        if self.favourite is not None:
            logits[..., self.favourite] = math.log(self.odds)
        if self.copies:
            ids = input_ids[0].tolist()
            for at, token in enumerate(ids):
                before = [i for i in range(at) if ids[i] == token]
                if before:
                    logits[0, at, ids[before[-1] + 1]] = 20.0
        return SimpleNamespace(logits=logits)

    def get_input_embeddings(self) -> Any:
        return SimpleNamespace(weight=torch.zeros(self.vocabulary, 1))


def text(*windows: list[int], scored_from: int = 1) -> HeldOut:
    return HeldOut("by hand", "foreign", "0" * 64, tuple(torch.tensor(each) for each in windows), scored_from)


def test_perplexity_kl_and_agreement_by_hand() -> None:
    """Evenly over 8 tokens, then 3:1 for token 2: p(2) = 3/10, p(other) = 1/10."""
    (found,) = verify(Known(), Known(2, 3.0), [text([1, 2, 2, 5], [2, 1, 1, 1])])
    assert found.tokens == 6
    assert found.perplexity_before == pytest.approx(8)
    # two of six scored tokens are 2
    after = (2 * -math.log(0.3) + 4 * -math.log(0.1)) / 6
    assert math.log(found.perplexity) == pytest.approx(after, rel=1e-6)
    assert found.ratio == pytest.approx(math.exp(after) / 8, rel=1e-6)
    assert found.kl == pytest.approx(math.log(1 / 8) - (math.log(0.3) + 7 * math.log(0.1)) / 8, rel=1e-5)
    assert found.agreement == 0.0  # the even one's first choice is token 0
    # windows change by (2 ln .3 + ln .1)/3 and ln .1, each from ln 8
    assert found.worst_ratio == pytest.approx(10 / 8, rel=1e-5)
    assert found.ratio_interval is not None
    assert found.ratio_interval[0] < found.ratio < found.ratio_interval[1]


def test_the_same_model_loses_nothing() -> None:
    (found,) = verify(Known(2, 3.0), Known(2, 3.0), [text([1, 2, 2, 5])])
    assert (found.ratio, found.kl, found.agreement, found.worst_ratio) == (1.0, 0.0, 1.0, 1.0)
    assert found.ratio_interval is None


def test_what_lies_behind_the_calibrated_length_alone_is_scored() -> None:
    (found,) = verify(Known(), Known(2, 3.0), [text([1, 1, 1, 2, 2], scored_from=3)])
    assert found.tokens == 2
    assert found.perplexity == pytest.approx(1 / 0.3, rel=1e-6)


def test_kinds_of_tokens() -> None:
    """Position 4 continues the pair (1, 2) of positions 0 and 1; token 7 is the rare one."""
    assert _kinds([1, 2, 7, 1, 2, 3, 3, 3], 1, frozenset({7})) == (
        "other", "rare", "other", "copied", "late", "late", "copied",
    )  # fmt: skip
    from collections import Counter

    assert _rare(Counter({1: 10, 2: 9, 3: 1})) == {3}
    assert _rare(Counter({1: 1})) == frozenset()


def test_probes_tell_a_model_that_copies_from_one_that_does_not() -> None:
    induction, recall = probes(Known(copies=True, vocabulary=100_000), Known(vocabulary=100_000))
    assert induction.before < 0.5 * induction.after
    assert induction.after == pytest.approx(math.log(100_000))
    assert recall.before > recall.after


def test_embeddings_of_the_same_model_are_the_same() -> None:
    class Encoder(Known):
        def __call__(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return (torch.nn.functional.one_hot(input_ids, VOCABULARY).float(),)

    assert embedding_cosine(Encoder(), Encoder(), [text([1, 2], [3, 4])]) == pytest.approx(1.0)


def test_the_foreign_text_is_code_without_its_documentation() -> None:
    code = source_code().text
    assert "def " in code
    assert len(code) > 100_000
    for text in documentation().text.split("\n\n")[:50]:
        assert len(text) < 40 or text not in code
