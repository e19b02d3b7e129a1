"""The template sentences: what cancels in them, and that the three words are found in each."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
np = pytest.importorskip("numpy")

from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.roles.coreference import KINDS, UNITS, Reading, readings  # noqa: E402
from manyheads.heads.roles.evidence import corrected, from_units, weaker  # noqa: E402

_FIT = {
    "she": "Anna Mary Emma Sarah Laura Susan Julia Alice Helen Maria Linda Karen Lucy Kate Rachel Jane Nancy Diana Claire Ruth "
           "Lisa Sophie Betty Grace",
    "he": "Tom John Peter Paul David Robert Mark George Frank Daniel Richard Steven James Henry Simon William Edward Martin "
          "Thomas Andrew Michael Jack Arthur Charles",
    "they": "boxes books bottles shoes plates flowers candles tools pictures cups stones bricks knives papers toys curtains "
            "pipes coats jars boards ropes pots letters cushions",
    "it": "lamp chair table bag clock mirror radio ladder carpet tray bench cart pan desk basket sofa barrel suitcase vase "
          "wheel tent stove camera piano",
}  # fmt: skip
NAMES = {pronoun: set(words.split()) for pronoun, words in _FIT.items()}
"""What each pronoun may stand for."""


def cut(text: str, place: tuple[int, int]) -> str:
    return text[slice(*place)]


def test_pronouns_stand_for_their_antecedents() -> None:
    for one in readings():
        pronoun, antecedent, distractor = (cut(one.text, p) for p in (one.pronoun, one.antecedent, one.distractor))
        assert antecedent in NAMES[pronoun]
        assert distractor in NAMES[{"she": "he", "he": "she", "they": "it", "it": "they"}[pronoun]]
        assert pronoun in KINDS[one.kind].split(", ")
        assert f" {pronoun} " in one.text
        assert one.pronoun[0] > max(one.antecedent[1], one.distractor[1])  # so that causal models can look back


def test_places_and_words_cancel_in_each_unit() -> None:
    """Each candidate, and each of the two places, is as often antecedent as distractor."""
    units: dict[tuple[int, int], list[tuple[str, bool, str]]] = {}
    for one in readings():
        for name in ("antecedent", "distractor"):
            place = getattr(one, name)
            first = place == min(one.antecedent, one.distractor)
            units.setdefault((one.kind, one.unit), []).append((cut(one.text, place), first, name))
    for seen in units.values():
        assert len(seen) == 8
        counts = Counter(seen)
        for word, first, _ in seen:
            assert counts[word, first, "antecedent"] == counts[word, first, "distractor"] == 1


def test_both_kinds_are_chosen_on_and_scored_and_no_pair_is_both() -> None:
    """A head may take to one name by chance: no two units share a pair. Every template is one unit of each half."""
    halves: dict[tuple[int, int], list[Reading]] = {}
    for one in readings():
        halves.setdefault((one.kind, one.unit % 2), []).append(one)
    assert sorted(halves) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    words = {key: Counter(cut(one.text, one.antecedent) for one in half) for key, half in halves.items()}
    for kind in range(len(KINDS)):
        assert not set(words[kind, 0]) & set(words[kind, 1])
    for key, half in halves.items():
        assert len({one.unit for one in half}) == UNITS // 2
        assert set(words[key].values()) == {2}  # once in either place, and in no other unit
        assert len({template(one) for one in half}) == UNITS // 2
    for kind in range(len(KINDS)):
        assert {template(one) for one in halves[kind, 0]} == {template(one) for one in halves[kind, 1]}


def template(one: Reading) -> str:
    known = set.union(*NAMES.values(), set(NAMES))
    return " ".join(word for word in one.text.split() if word.strip(".,") not in known)


def test_a_pronoun_that_fits_one_kind_alone_is_no_coreference() -> None:
    """Of every head the figures are those of the kind that shows less, and both must be told from chance."""
    heads = (Head(0, 0), Head(0, 1))
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.01, (2, UNITS, 2, 2))
    gendered, number = noise + 0.1
    gendered[:, :, 0] += 0.5  # both heads look from he and she to whom they mean
    number[:, 1, 0] += 0.3  # and the second from it and they
    parts = {
        kind: from_units("coreference", heads, values, seed=0, what="", control="")
        for kind, values in zip(KINDS, (gendered, number), strict=True)
    }
    (found,), _ = corrected([weaker("coreference", parts, what="", control="")], fdr=0.05)
    assert [found.role(at).verdict for at in (0, 1)] == ["not above its control", "holds"]
    assert found.score.tolist() == pytest.approx([0.1, 0.4], abs=0.02)
    assert found.detail[1].startswith("he, she 0.6")
    assert found.p_value[0] == parts[KINDS[1]].p_value[0]
