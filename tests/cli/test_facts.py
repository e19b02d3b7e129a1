"""`manyheads facts`: records, search, tables, bibliographies; exit 1 where nothing answers, 2 where the question is wrong."""

from __future__ import annotations

import json
import re

import pytest

from manyheads.cli.main import main
from manyheads.facts.library import entries, facts, glossary, tables


def shown(capsys, *words: str) -> str:
    assert main(["facts", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_overview_counts_and_says_how_to_go_on(capsys) -> None:
    text = shown(capsys)
    for word, meaning in {**glossary("verdicts"), **glossary("topics")}.items():
        assert re.search(rf"^  {word} +\d+  {re.escape(meaning)}", text, re.MULTILINE), word
    assert re.search(r"^  wrong +30 ", text, re.MULTILINE)
    assert all(table.key in text for table in tables())
    assert "manyheads facts A38" in text
    assert "--cite bibtex" in text


def test_a_key_shows_the_full_record(capsys) -> None:
    text = shown(capsys, "a54")
    for part in ["wrong", "12 times", "1.51 / 0.24 ≈ 6.3", "46 / 3.8 ≈ 12.1", "Ainslie and others 2023", "2305.13245"]:
        assert part in flat(text)
    assert "Table 1" in text
    assert "[P] the paper's own text was read" in text
    assert "[S] second-hand" in text


def test_several_keys_of_all_kinds(capsys) -> None:
    text = shown(capsys, "A26", "F6", "C3", "vaswani-heads", "A26")
    assert text.count("A26, cache") == 1
    assert "335,544,320,000 B" in text
    assert "d·H·q + d·K·q + d·K·v + H·v·d" in text
    assert "gives 41,943,040 weights" in flat(text)
    assert "W counts keys" in text
    assert re.search(r"16 +32 +4\.91 +25\.8", text)


def test_words_search_and_rank(capsys) -> None:
    text = shown(capsys, "pruning", "heads")
    keys = re.findall(r"^  ([ABFNC]\d+)  ", text, re.MULTILINE)
    assert {"A48", "A49", "A50", "B3"} <= set(keys)
    assert f"manyheads facts {keys[0]}" in text


def test_one_hit_is_shown_in_full(capsys) -> None:
    text = shown(capsys, "seven", "41.29")
    assert "38.1 < 39.2" in flat(text)
    assert "[P] the paper's own text was read" in text


def test_words_of_the_tour_find_something(capsys) -> None:
    assert "A12" in shown(capsys, "softmax")


def test_verdict_filters(capsys) -> None:
    wrong = json.loads(shown(capsys, "--verdict", "wrong", "--json"))
    assert {each["key"] for each in wrong["entries"]} == {each.key for each in facts() if each.verdict == "wrong"}
    some = json.loads(shown(capsys, "llama", "--verdict", "wrong", "--json"))
    assert {"A61"} <= {each["key"] for each in some["entries"]} < {each["key"] for each in wrong["entries"]}
    unverified = shown(capsys, "--verdict", "unverified")
    assert "A49" in unverified
    assert "A68" in unverified


def test_a_table_by_name(capsys) -> None:
    text = shown(capsys, "--table", "ainslie-speed")
    assert re.search(r"GQA-8-XXL +0\.28 +47\.1", text)
    assert "1.51 / 0.28 ≈ 5.4" in flat(text)


@pytest.mark.parametrize("words", [[], ["cache"], ["mla"], *[[each.key] for each in entries()]], ids=str)
def test_nothing_is_wider_than_80_columns_or_cut(capsys, words: list[str]) -> None:
    text = shown(capsys, *words)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "…" not in text


@pytest.mark.parametrize("each", facts(), ids=lambda each: each.key)
def test_the_text_holds_every_word_of_the_claim(capsys, each) -> None:
    text = flat(shown(capsys, each.key))
    assert set(each.claim.split()) <= set(text.split())
    assert set(each.right.split()) <= set(text.split())


def test_json_holds_exact_values_and_the_sources(capsys) -> None:
    data = json.loads(shown(capsys, "A26", "F38", "vaswani-heads", "--json"))
    assert data["schema"] == "manyheads.facts/1"
    assert data["count"] == 3
    claim, formula, table = data["entries"]
    assert [each["kind"] for each in data["entries"]] == ["claim", "formula", "table"]
    assert claim["verdict"] == "right"
    assert claim["arithmetic"][0]["value"] == 335_544_320_000
    assert isinstance(claim["arithmetic"][0]["value"], int)
    assert formula["symbols"]["c"] == "rank of the KV latent (MLA)"
    assert abs(formula["arithmetic"][0]["value"] - 2 * 128 * 1088 / 1152) < 1e-9
    assert table["rows"][1] == [4, 128, 5.0, 25.5, -0.3]
    assert data["sources"]["vaswani2017"]["arxiv"] == "1706.03762"
    assert {each["source"] for entry in data["entries"] for each in entry["sources"]} == set(data["sources"])


def test_json_of_everything(capsys) -> None:
    data = json.loads(shown(capsys, "--json"))
    assert data["count"] == len(data["entries"]) == len(entries())


def test_citations_of_keys_words_and_tables(capsys) -> None:
    assert shown(capsys, "A54", "--cite", "bibtex").count("@") == 2
    (item,) = json.loads(shown(capsys, "--table", "ainslie-speed", "--cite", "csl"))
    assert item["id"] == "ainslie2023"
    assert "ID  - clark2019" in shown(capsys, "separators", "--cite", "ris")
    assert shown(capsys, "A38", "--cite", "ris").startswith("TY  - CONF\n")
    assert shown(capsys, "--cite", "bibtex").count("@") >= 20


def test_output_goes_to_a_file_whole(capsys, tmp_path) -> None:
    for name, words in {"a.txt": [], "b.json": ["--json"], "c.bib": ["--cite", "bibtex"]}.items():
        target = tmp_path / name
        assert main(["facts", "A38", *words, "--output", str(target)]) == 0
        out, err = capsys.readouterr()
        assert out == ""
        assert name in err
        text = target.read_text(encoding="utf-8")
        assert "41.29" in text or name == "c.bib"
    assert json.loads((tmp_path / "b.json").read_text())["count"] == 1
    assert (tmp_path / "c.bib").read_text().startswith("@inproceedings{vaswani2017,")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["zebra", "cache"], ["'zebra cache'", "zebra 0", "cache "]),
        (["zebra"], ["'zebra'", "manyheads facts"]),
        (["softmax", "--verdict", "unverified"], ["unverified", "'softmax'"]),
        (["C3", "--verdict", "wrong"], ["wrong", "'C3'"]),
        (["§§§"], ["§§§"]),
        (["A4", "--cite", "bibtex"], ["A4", "no work to cite"]),
    ],
)
def test_no_answer_is_exit_1_and_one_helpful_line(capsys, tmp_path, words: list[str], parts: list[str]) -> None:
    target = tmp_path / "out"
    assert main(["facts", *words, "--output", str(target)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert [part for part in parts if part not in err] == []
    assert not target.exists()


def test_no_answer_in_json_is_an_empty_list(capsys) -> None:
    assert main(["facts", "zebra", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["entries"] == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["A99"], ["'A99'", "A9"]),
        (["A38", "a380"], ["'a380'", "A38"]),
        (["zebra", "B26"], ["'B26'", "B2"]),
        (["--table", "vaswani"], ["'vaswani'", "vaswani-heads"]),
        (["cache", "--table", "vaswani-heads"], ["--table"]),
        (["--verdict", "false"], ["false", "wrong"]),
        (["A38", "--cite", "endnote"], ["endnote", "bibtex"]),
        (["A38", "--cite", "csl", "--json"], ["--cite", "--json"]),
        (["A38", "--output", "/no/such/folder/x"], ["/no/such/folder"]),
    ],
)
def test_a_wrong_question_is_exit_2_and_one_line(capsys, words: list[str], parts: list[str]) -> None:
    assert main(["facts", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert [part for part in parts if part not in err] == []
    assert "Traceback" not in err


def test_neither_torch_nor_numpy_is_imported(python) -> None:
    program = (
        "import sys; from manyheads.cli.main import main; assert main(['facts', 'A38', '--json']) == 0\n"
        "assert not {'torch', 'numpy', 'transformers', 'rich'} & set(sys.modules)"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
