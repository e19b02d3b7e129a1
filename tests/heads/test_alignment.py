"""Words that become several pieces, one, or none; what stands around a text; and the names on the axes of a map."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tokenizers  # noqa: E402
import transformers  # noqa: E402

from manyheads.errors import ManyheadsError  # noqa: E402
from manyheads.heads.alignment import Frame, align, frame, word_attention  # noqa: E402


@pytest.fixture(scope="module")
def wordpiece() -> Any:
    """A tokenizer as BERT's: lower case, control characters dropped, [CLS] and [SEP] around a text."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "play", "##ing", "##ful", ".", "a"]
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"
    )


@pytest.fixture(scope="module")
def merged() -> Any:
    """A byte-level BPE in which the quotation mark and the full stop are one token, with no special tokens of its own."""
    vocabulary = {"a": 0, "b": 1, "Ġ": 2, ".": 3, '"': 4, '."': 5, "Ġb": 6, "<s>": 7}
    model = tokenizers.models.BPE(vocab=vocabulary, merges=[(".", '"'), ("Ġ", "b")])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")


def test_several_pieces_and_a_frame(wordpiece: Any) -> None:
    around = frame(wordpiece)
    assert (around.before, around.after) == ((2,), (3,))
    text = "The cats playing."
    one = align(wordpiece, text, [(0, 3), (4, 8), (9, 16), (16, 17)], around=around)
    assert one.ids == (2, 4, 5, 6, 7, 8, 10, 3)
    assert one.pieces == ((1,), (2, 3), (4, 5), (6,))


def test_a_word_of_stripped_characters_has_no_piece(wordpiece: Any) -> None:
    """Case O91."""
    text = "the \u200b\u0007 cat"
    one = align(wordpiece, text, [(0, 3), (4, 6), (7, 10)])
    assert one.ids == (4, 5)
    assert one.pieces == ((0,), (), (1,))


def test_a_piece_of_two_words_goes_to_the_first(merged: Any) -> None:
    one = align(merged, 'a b."', [(0, 1), (2, 3), (3, 4), (4, 5)])
    assert one.ids == (0, 6, 5)
    assert one.pieces == ((0,), (1,), (2,), ())


class Letters:
    """A fast tokenizer that makes a piece of every two letters, spaces included."""

    is_fast = True

    def __call__(self, text: str, **_: Any) -> dict[str, list[Any]]:
        places = [(at, min(at + 2, len(text))) for at in range(0, len(text), 2)]
        return {"input_ids": list(range(len(places))), "offset_mapping": places}


def test_a_piece_goes_to_the_word_that_most_of_its_letters_are_of() -> None:
    # "abcdefg" as ab cd ef g; words abc, d, efg: cd is shared and goes to the first; spans may come in any order
    assert align(Letters(), "abcdefg", [(0, 3), (3, 4), (4, 7)]).pieces == ((0, 1), (), (2, 3))
    assert align(Letters(), "abcdefg", [(4, 7), (0, 3), (3, 4)]).pieces == ((2, 3), (0, 1), ())


def test_long_sentences_take_time_by_their_length() -> None:
    """Eight times the words take about eight times as long; compared pair by pair they took sixty-four times."""

    def seconds(words: int) -> float:
        spans = [(at * 4, at * 4 + 3) for at in range(words)]
        began = time.perf_counter()
        align(Letters(), "cat " * words, spans)
        return time.perf_counter() - began

    assert min(seconds(8_000) for _ in range(3)) < 25 * min(seconds(1_000) for _ in range(3))


def test_a_word_without_a_span_has_no_piece(wordpiece: Any) -> None:
    assert align(wordpiece, "the cat", [(0, 3), (3, 3), (4, 7)]).pieces == ((0,), (), (1,))


def test_tokenizers_that_say_no_places_are_asked_word_by_word() -> None:
    class Slow:
        is_fast = False

        def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) for letter in text if letter not in " -"]}

    one = align(Slow(), "ab - c", [(0, 2), (3, 4), (5, 6)], around=Frame(before=(1,)))
    assert one.ids == (1, ord("a"), ord("b"), ord("c"))
    assert one.pieces == ((1, 2), (), (3,))


def test_to_a_word_the_sum_and_from_it_the_mean() -> None:
    weights = torch.tensor(
        [[[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.3], [0.0, 0.5, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25]]]
    )
    # words: pieces 0; pieces 1 and 2; none; piece 3
    found = word_attention(weights, [(0,), (1, 2), (), (3,)])
    expected = [[0.1, 0.5, 0.0, 0.4], [0.25, 0.6, 0.0, 0.15], [0.0] * 4, [0.25, 0.5, 0.0, 0.25]]
    assert torch.allclose(found, torch.tensor([expected]))


def test_what_stands_before_is_decided_and_said(wordpiece: Any, merged: Any) -> None:
    assert frame(wordpiece).said == "[CLS] before, [SEP] after the text (as the tokenizer does)"
    without = frame(wordpiece, bos=False)
    assert (without.before, without.after) == ((), (3,))
    assert without.said == "nothing before, [SEP] after the text (as asked)"
    assert frame(merged).said == "nothing before, nothing after the text (as the tokenizer does)"
    assert frame(merged, bos=True) == Frame((7,), (), "<s> before, nothing after the text (as asked)")


def test_a_token_that_there_is_not() -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    plain = transformers.PreTrainedTokenizerFast(tokenizer_object=made)
    with pytest.raises(ManyheadsError, match="beginning-of-text token was asked for"):
        frame(plain, bos=True)
    with pytest.raises(ManyheadsError, match="without a tokenizer"):
        frame(None)
