"""The template sentences: what cancels in them, and that the three words are found in each."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from manyheads.heads.coreference import readings

FIRST = {"she": {"Anna", "Mary", "Emma", "Sarah"}, "they": {"boxes", "books", "bottles", "shoes"}}
SECOND = {"he": {"Tom", "John", "Peter", "Paul"}, "it": {"lamp", "chair", "table", "bag"}}


def cut(text: str, place: tuple[int, int]) -> str:
    return text[slice(*place)]


def test_pronouns_stand_for_their_antecedents() -> None:
    for one in readings():
        pronoun, antecedent, distractor = (cut(one.text, p) for p in (one.pronoun, one.antecedent, one.distractor))
        assert antecedent in (FIRST | SECOND)[pronoun]
        assert distractor not in (FIRST | SECOND)[pronoun]
        assert f" {pronoun} " in one.text
        assert one.pronoun[0] > max(one.antecedent[1], one.distractor[1])  # so that causal models can look back


def test_places_and_words_cancel_in_each_unit() -> None:
    """Each candidate, and each of the two places, is as often antecedent as distractor."""
    units: dict[int, list[tuple[str, bool, str]]] = {}
    for one in readings():
        for name in ("antecedent", "distractor"):
            place = getattr(one, name)
            first = place == min(one.antecedent, one.distractor)
            units.setdefault(one.unit, []).append((cut(one.text, place), first, name))
    for seen in units.values():
        assert len(seen) == 8
        counts = Counter(seen)
        for word, first, _ in seen:
            assert counts[word, first, "antecedent"] == counts[word, first, "distractor"] == 1


def test_halves_share_no_template() -> None:
    def shape(text: str) -> str:
        return " ".join(
            w for w in text.split() if w.strip(".,") not in set.union(*FIRST.values(), *SECOND.values(), FIRST, SECOND)
        )

    halves = [{shape(one.text) for one in readings() if one.unit % 2 == half} for half in (0, 1)]
    assert not halves[0] & halves[1]
    assert len(halves[0]) == len(halves[1]) == 4
