"""Clark's evaluation on attention written by hand, and its control."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
np = pytest.importorskip("numpy")

from manyheads.errors import ManyheadsError  # noqa: E402
from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.alignment import Aligned, frame  # noqa: E402
from manyheads.heads.left_out import LeftOut  # noqa: E402
from manyheads.heads.roles import Sentence, parse_conllu  # noqa: E402
from manyheads.heads.roles.syntax import Hits, _instances, _right, collect, judge, too_rare  # noqa: E402
from support.tiny_transformers import build  # noqa: E402


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
        np.stack([seen, seen], 1), both,
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


def sentences(count: int) -> tuple[Sentence, ...]:
    """Random trees over random words, one word in eight made of characters that the tokenizer drops."""
    rng = random.Random(count)
    made = []
    for _ in range(count):
        length = rng.randint(3, 9)
        words = ["\u200b" if rng.random() < 1 / 8 else f"w{rng.randrange(40)}" for _ in range(length)]
        lines = [
            f"{at + 1}\t{word}\t_\t_\t_\t_\t{0 if at == 0 else rng.randint(1, at)}\t{rng.choice(('obj', 'nmod:of'))}\t_\t_"
            for at, word in enumerate(words)
        ]
        made += parse_conllu("\n".join(lines))
    return tuple(made)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    names = ["[PAD]", "[CLS]", "[SEP]", "?", *(f"w{number}" for number in range(40))]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="?"))
    made.normalizer = tokenizers.normalizers.BertNormalizer()
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?")


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_collected_as_from_the_matrices_of_eager_attention(family: str, tokenizer: Any) -> None:
    """Case O91: words of which nothing is left are no instance, and shift no other word's pieces."""
    model = build(family)
    asked, around = sentences(12), frame(tokenizer)
    hits = collect(model, tokenizer, asked, around=around)
    assert {head.stack for head in hits.heads} == {"encoder" if family == "t5" else ""}
    body = model.get_encoder() if family == "t5" else model
    dropped = 0
    for number in set(hits.sentence.tolist()):
        sentence = asked[number]
        kept = [at for at, word in enumerate(sentence.words) if word != "\u200b"]
        dropped += len(sentence.words) - len(kept)
        ids = tokenizer(" ".join(sentence.words[at] for at in kept), return_tensors="pt").input_ids
        assert ids.shape[1] == len(kept) + 2
        with torch.no_grad():
            layers = body(input_ids=ids, output_attentions=True).attentions
        of_it = np.flatnonzero(hits.sentence == number)
        pairs = [(at, head) for at, head in enumerate(sentence.heads) if head >= 0 and {at, head} <= set(kept)]
        assert len(of_it) == len(pairs)
        for instance, (word, governor) in zip(of_it, pairs, strict=True):
            for head, address in enumerate(hits.heads):
                weights = layers[address.layer][0, address.head, 1:-1, 1:-1].clone().fill_diagonal_(-1.0)
                for direction, (start, end) in enumerate(((word, governor), (governor, word))):
                    if hits.counted[instance, direction]:
                        most = kept[int(weights[kept.index(start)].argmax())]
                        assert bool(hits.right[instance, head, direction]) == (most == end)
            assert hits.counted[instance].tolist() == (
                [governor < word, word < governor] if family == "llama" else [True] * 2
            )
            assert hits.offset[instance] == governor - word
    assert dropped > 0
    assert set(hits.relation.tolist()) == {"obj", "nmod"}


def test_sentences_longer_than_the_model_reads_are_left_out(tokenizer: Any) -> None:
    long = parse_conllu("\n".join(f"{at}\tw1\t_\t_\t_\t_\t{at - 1}\tobj\t_\t_" for at in range(1, 1_500)))
    model = build("bert", max_position_embeddings=20)
    left, *_ = collect(model, tokenizer, (*sentences(4), *long), around=frame(tokenizer)).left_out
    assert left == LeftOut("sentences", 1, 5, "longer than the 20 tokens that the model reads")
    with pytest.raises(ManyheadsError, match=r"none of the 1 sentences .*: 1 are longer than the 20 tokens"):
        collect(model, tokenizer, long, around=frame(tokenizer))
    alone = parse_conllu("1\tw1\t_\t_\t_\t_\t0\troot\t_\t_")
    with pytest.raises(ManyheadsError, match=r"none of the 1 sentences .*, and 1 have no relation between two words"):
        collect(model, tokenizer, alone, around=frame(tokenizer))


def test_every_sentence_and_relation_that_is_left_out_is_told(tokenizer: Any) -> None:
    """Four sentences by hand: judged whole, judged in part, of words without pieces, of one word."""
    trees = (
        "1\tw1\t_\t_\t_\t_\t2\tobj\t_\t_\n2\tw2\t_\t_\t_\t_\t0\troot\t_\t_",
        "1\tw1\t_\t_\t_\t_\t2\tobj\t_\t_\n2\tw2\t_\t_\t_\t_\t0\troot\t_\t_\n{more}",
        "1\t\u200b\t_\t_\t_\t_\t2\tobj\t_\t_\n2\tw2\t_\t_\t_\t_\t0\troot\t_\t_",
        "1\tw1\t_\t_\t_\t_\t0\troot\t_\t_",
    )
    more = "3\t\u200b\t_\t_\t_\t_\t2\tnmod\t_\t_\n4\tw3\t_\t_\t_\t_\t3\tpunct\t_\t_"
    asked = parse_conllu("\n\n".join(trees).format(more=more))
    hits = collect(build("bert"), tokenizer, asked, around=frame(tokenizer))
    assert hits.relation.tolist() == ["obj", "obj"]
    assert hits.left_out == (
        LeftOut("sentences", 2, 4, "no relation in them between two words that the tokenizer makes pieces of"),
        LeftOut("relations", 2, 4, "the tokenizer makes no piece of a word at one of the two ends"),
    )


def test_relations_that_are_too_rare_are_named() -> None:
    hits = made([1] * 80, [[True] * 80])
    hits = replace(hits, relation=np.array(["amod"] + (["nmod"] + ["obj"] * 19) * 4)[:80])
    found = judge(hits, chosen_on=range(40), scored_on=range(40, 80))
    assert [one.relation for one in found] == ["obj"]
    assert too_rare(hits, found) == ("amod", "nmod")
