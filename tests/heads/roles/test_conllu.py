"""CoNLL-U: what the format says, and a broken line named by its number."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from manyheads.errors import ManyheadsError
from manyheads.heads.roles import parse_conllu, read_conllu

PUD = Path(__file__).parents[4] / "shared" / "data" / "ud-pud"


def row(number: object, form: str, head: object = 0, relation: str = "dep", misc: str = "_") -> str:
    return f"{number}\t{form}\t_\t_\t_\t_\t{head}\t{relation}\t_\t{misc}"


GOOD = "\n".join([
    "# sent_id = 1", row(1, "Dogs", 2, "nsubj"), row(2, "bark", 0, "root", "SpaceAfter=No"), row(3, ".", 2, "punct"), "",
])  # fmt: skip


def test_words_heads_relations_and_places() -> None:
    (one,) = parse_conllu(GOOD)
    assert one.words == ("Dogs", "bark", ".")
    assert one.heads == (1, -1, 1)
    assert one.relations == ("nsubj", "root", "punct")
    assert one.text == "Dogs bark."
    assert [one.text[start:end] for start, end in one.spans] == list(one.words)
    assert one.line == 2


def test_a_range_whose_words_are_its_letters() -> None:
    (one,) = parse_conllu("\n".join([row("1-2", "don't", "_", "_"), row(1, "do", 3), row(2, "n't", 3), row(3, "go")]))
    assert one.text == "don't go"
    assert [one.text[start:end] for start, end in one.spans] == ["do", "n't", "go"]


def test_words_that_are_not_written_by_themselves() -> None:
    (one,) = parse_conllu("\n".join([row("1-2", "zum", "_", "_"), row(1, "zu", 3), row(2, "dem", 3), row(3, "Haus")]))
    assert one.text == "zum Haus"
    assert [one.text[start:end] for start, end in one.spans] == ["", "", "Haus"]


def test_empty_nodes_are_passed_over_and_windows_line_ends_are_none_of_ours() -> None:
    (one,) = parse_conllu("\r\n".join([row(1, "A", 2), row("1.1", "B", "_"), row(2, "C"), "", ""]))
    assert one.words == ("A", "C")


@pytest.mark.parametrize(("lines", "said"), [
    ([row(1, "A"), "2\tB"], "x, line 2: 2 fields; expected 10"),
    ([row(1, "A").replace("\t", " ")], "x, line 1: 1 fields; expected 10"),
    ([row("one", "A")], "x, line 1: the id 'one' is no whole number"),
    (["# text", row(1, "A"), row(3, "B")], "x, line 3: word 3 follows word 1; expected 2"),
    ([row(1, "A", "root")], "x, line 1: the head 'root' is no whole number"),
    ([row(1, "A", -1)], "x, line 1: the head '-1' is no whole number"),
    ([row(1, "A", 2), row(2, "B", 7)], "x, line 2: the head of word 2 is 7; expected 0 for the root, or another of the 2"),
    ([row(1, "A", 1)], "x, line 1: the head of word 1 is 1"),
    ([row("1-4", "AB", "_"), row(1, "A"), row(2, "B", 1)], "x, line 3: a range ends with word 4, after 2 words"),
    ([row("2-3", "AB", "_"), row(1, "A")], "x, line 1: the range 2-3 stands before word 1"),
    (["", "# nothing", ""], "x: no sentence in it"),
    ([row(1, "A", 2), row(1, "B")], "x, line 2: word 1 follows word 1; expected 2"),
    ([row(1, "A", 2), row(2, "B", 1)], "x, line 1: the heads go in a circle (1 to 2 to 1)"),
    ([row(1, "A"), row(2, "B", 3), row(3, "C", 4), row(4, "D", 2), row(5, "E", 4)],
     "x, line 2: the heads go in a circle (2 to 3 to 4 to 2)"),
    ([row(n, "A", n % 9 + 1) for n in range(1, 10)], "x, line 1: the heads go in a circle (1 to 2 to 3 to 4 to 5 to ... to 1)"),
    ([row(1, "A", "2.1"), row(2, "B")], "x, line 1: the head '2.1' is no whole number"),
    ([row("0.1", "A", "_")], "x, line 1: the sentence has no word"),
    ([row("1-2", "AB"), row("2-3", "BC"), row(1, "A")], "x, line 2: the range 2-3 begins inside 1-2"),
    ([row(1, "A"), "\t" * 9, row(2, "B")], "x, line 2: the id '' is no whole number"),
    ([row(1, "A") + "\r" + row(2, "B")], "x, line 1: 19 fields; expected 10"),
])  # fmt: skip
def test_broken_lines_are_named(lines: list[str], said: str) -> None:
    with pytest.raises(ManyheadsError) as caught:
        parse_conllu("\n".join(lines), named="x")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_what_is_odd_and_no_error() -> None:
    """Several roots, a range in the middle, an empty node after it, a last line without an end, no CR of Windows kept."""
    lines = [
        row(1, "A"),
        row(2, "B", 1),
        row("3-4", "CD", "_"),
        row(3, "C", 1),
        row("3.1", "E", "_"),
        row(4, "D"),
        row(5, "F", 4),
    ]
    for end in ("\n", "\r\n"):
        (one,) = parse_conllu(end.join(lines))
        assert one.words == ("A", "B", "C", "D", "F")
        assert one.heads == (-1, 0, 0, -1, 3)
        assert one.text == "A B CD F"
        assert [one.text[begin:stop] for begin, stop in one.spans] == ["A", "B", "C", "D", "F"]


def test_a_long_way_to_the_root_is_no_circle() -> None:
    (one,) = parse_conllu("\n".join(row(n, "A", n + 1 if n < 5_000 else 0) for n in range(1, 5_001)))
    assert one.heads[:2] == (1, 2)


def test_the_number_counts_all_sentences_before(tmp_path: Path) -> None:
    path = tmp_path / "bad.conllu"
    path.write_text(GOOD + "\n" + row(1, "A") + "\nbroken\n")
    with pytest.raises(ManyheadsError, match=r"bad\.conllu, line 7: 1 fields"):
        read_conllu(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ManyheadsError, match=r".*none\.conllu: no such file; expected a CoNLL-U file"):
        read_conllu(str(tmp_path / "none.conllu"))
    with pytest.raises(ManyheadsError, match="'': no such file"):
        read_conllu("")
    with pytest.raises(ManyheadsError, match="is not a possible path"):
        read_conllu("a\0b")
    (tmp_path / "latin.conllu").write_bytes(GOOD.encode() + b"\n1\t\xe9t\xe9")
    with pytest.raises(ManyheadsError, match=r"latin\.conllu, line 6: byte 0xe9 is no UTF-8"):
        read_conllu(str(tmp_path / "latin.conllu"))


def test_what_has_no_end_or_never_begins_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("/dev/zero", str(tmp_path / "pipe")):
        with pytest.raises(ManyheadsError, match="is not a regular file"):
            read_conllu(name)
    monkeypatch.setattr("manyheads.heads.roles.conllu._MOST_BYTES", 1_000)
    (tmp_path / "long.conllu").write_text(GOOD * 100)
    with pytest.raises(ManyheadsError, match=r"long\.conllu: \d+ bytes; expected a CoNLL-U file, at most 1000 bytes"):
        read_conllu(str(tmp_path / "long.conllu"))


@pytest.mark.real
@pytest.mark.parametrize(("language", "words"), [("en", 21_180), ("de", 21_332), ("fr", 24_726)])
def test_a_real_treebank(language: str, words: int) -> None:
    path = PUD / f"{language}_pud-ud-test.conllu"
    if not path.exists():
        pytest.skip("UD PUD is not beside the project (../shared/data/ud-pud)")
    sentences = read_conllu(str(path))
    texts = [line[9:] for line in path.read_text(encoding="utf-8").split("\n") if line.startswith("# text = ")]
    assert (len(sentences), sum(len(one.words) for one in sentences)) == (1_000, words)
    assert [one.text for one in sentences] == texts
