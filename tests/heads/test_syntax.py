"""Clark's evaluation on attention written by hand, and its control."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
np = pytest.importorskip("numpy")

from manyheads.errors import ManyheadsError  # noqa: E402
from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.alignment import Aligned  # noqa: E402
from manyheads.heads.conllu import Sentence  # noqa: E402
from manyheads.heads.syntax import Hits, _instances, _right, judge  # noqa: E402


def test_the_most_attended_word_is_compared_with_the_tree() -> None:
    # [CLS] the (nothing) dog|s bark [SEP]: "the" belongs to "dogs", "dogs" to "bark"; one word has no piece
    sentence = Sentence(
        ("the", "\u200b", "dogs", "bark"), (2, 2, 3, -1), ("det", "dep", "nsubj", "root"), "", ((0, 0),) * 4
    )
    aligned = Aligned((0, 1, 2, 3, 4, 5), ((1,), (), (2, 3), (4,)))
    weights = torch.zeros(2, 6, 6)
    # Head 0, from "the": most to [CLS], then to itself, which do not count; to "dogs" 0.11 in two pieces, to "bark" 0.09.
    weights[0, 1] = torch.tensor([0.5, 0.3, 0.06, 0.05, 0.09, 0.0])
    # From "dogs": the mean of its pieces, 0.25 to "the" and 0.3 to "bark".
    weights[0, 2] = torch.tensor([0.3, 0.5, 0.0, 0.0, 0.2, 0.0])
    weights[0, 3] = torch.tensor([0.6, 0.0, 0.0, 0.0, 0.4, 0.0])
    # From "bark": 0.35 to "the", 0.4 to "dogs", no piece of which has as much.
    weights[0, 4] = torch.tensor([0.0, 0.35, 0.2, 0.2, 0.25, 0.0])
    # Head 1 looks at "the" from everywhere.
    weights[1, :, 1] = 1.0
    dependents, governors = _instances(sentence, aligned)
    assert (dependents.tolist(), governors.tolist()) == ([0, 2], [2, 3])
    right = _right(weights, sentence, aligned)  # (instance, head, direction)
    assert right[:, 0].tolist() == [[True, False], [True, True]]
    assert right[0, 1].tolist() == [False, True]
    assert right[1, 1].tolist() == [False, False]


def made(offsets: list[int], right: list[list[bool]], *, counted: list[bool] | None = None) -> Hits:
    """One relation, an instance a sentence; `right[head]` says where a head is right, the same both ways."""
    count = len(offsets)
    both = np.repeat(np.array(right, dtype=bool).T[:, :, None], 2, axis=2)
    seen = np.ones(count, dtype=bool) if counted is None else np.array(counted)
    return Hits(
        tuple(Head(0, head) for head in range(len(right))), np.array(["obj"] * count), np.arange(count), np.array(offsets),
        np.stack([seen, seen], 1), both, 0,
    )  # fmt: skip


def test_choices_on_one_half_and_figures_from_the_other() -> None:
    # On the first half offset -2 is best (3 of 4), on the second -1 would be: the figure is that of -2, 1 of 4.
    offsets = [-2, -2, -2, -1, -1, -1, -1, -2]
    head = [True, True, True, True, True, True, False, False]
    (found,) = judge(made(offsets, [head, [False] * 8]), chosen_on=range(4), scored_on=range(4, 8), least=4)
    assert found.offset == (-2, -2)
    assert (found.chosen[0], found.chosen_control[0]) == (1.0, 0.75)
    assert (found.score[0], found.null[0]) == (0.5, 0.25)
    # Alone right: instances 4 and 5; the offset alone: instance 7. Two of three heads up, or more: (3 + 1) / 8.
    assert found.p_value[0] == pytest.approx(0.5)
    assert found.score[1] == 0.0
    assert found.p_value[1] == 1.0
    assert found.instances == (4, 4)


def test_only_what_could_be_seen_is_counted() -> None:
    counted = [True, True, False, True, True, False]
    (found,) = judge(
        made([-1] * 6, [[True, False, False, True, False, False]], counted=counted),
        chosen_on=range(3), scored_on=range(3, 6), least=2,
    )  # fmt: skip
    assert found.score[0] == 0.5
    assert found.instances == (2, 2)


def test_relations_with_few_instances_are_not_judged() -> None:
    assert judge(made([-1] * 6, [[True] * 6]), chosen_on=range(3), scored_on=range(3, 6), least=4) == ()


def test_halves_must_not_overlap() -> None:
    with pytest.raises(ManyheadsError, match="two separate sets"):
        judge(made([-1] * 6, [[True] * 6]), chosen_on=range(4), scored_on=range(3, 6))
