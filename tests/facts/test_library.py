"""The library holds what it should, says it once, and every figure that it shows comes out when worked out again."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from manyheads.errors import ManyheadsError
from manyheads.facts import Fact, conventions, facts, formulas, source, sources, tables
from manyheads.facts.arithmetic import SumError
from manyheads.facts.finding import entry, fact
from manyheads.facts.library import entries, glossary
from manyheads.facts.records import Convention, Formula
from manyheads.facts.working import outcomes


def test_the_claims_are_all_there_in_order() -> None:
    keys = [each.key for each in facts()]
    notes = [key for key in keys if key.startswith("N")]
    assert keys == [f"A{n}" for n in range(1, 75)] + [f"B{n}" for n in range(1, 26)] + notes
    assert notes == [f"N{n}" for n in range(1, len(notes) + 1)]


@pytest.mark.parametrize(("letter", "found"), [("F", formulas()), ("C", conventions())])
def test_the_other_keys_count_up(letter: str, found: tuple[Formula | Convention, ...]) -> None:
    assert [each.key for each in found] == [f"{letter}{n}" for n in range(1, len(found) + 1)]


def test_the_verdicts_of_the_two_texts() -> None:
    essay = Counter(each.verdict for each in facts() if each.key.startswith("A"))
    lesson = Counter(each.verdict for each in facts() if each.key.startswith("B"))
    assert essay == {"right": 24, "wrong": 26, "imprecise": 22, "unverified": 2}
    assert lesson == {"right": 23, "imprecise": 2}


def test_words_of_the_data_are_the_glossaries() -> None:
    assert {each.topic for each in entries()} == set(glossary("topics"))
    assert {each.verdict for each in facts()} == set(glossary("verdicts"))
    assert {citation.strength for each in entries() for citation in each.sources} == set(glossary("strengths"))
    assert {each.key[0] for each in entries() if each.key[0].isupper()} == set(glossary("origins"))


def test_keys_are_unique_whatever_their_case() -> None:
    keys = [each.key.upper() for each in entries()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("each", entries(), ids=lambda each: each.key)
def test_every_sum_comes_out(each: Fact) -> None:
    shown = outcomes(each)
    assert all(outcome.text for outcome in shown)
    assert isinstance(each, Fact | Convention) or shown


@pytest.mark.parametrize("each", [each for each in entries() if outcomes(each)], ids=lambda each: each.key)
def test_a_figure_that_is_changed_is_caught(each: Fact) -> None:
    """Every digit of every result, one at a time: no sum is so loose that a misprint slips through."""
    name = "worked" if isinstance(each, Formula) else "arithmetic"
    for line in getattr(each, name):
        if not re.search(r" [=~] ", line):
            continue
        head, relation, result = re.split(r" ([=~]) (?=[^=~]*$)", line)
        value = re.match(r"[0-9+\-*/(). ]*[0-9)]", result)[0]
        for place, digit in enumerate(value):
            if digit.isdigit() and not re.match(r"[*+/(]", value[place:]) and value.replace(".", "").isdigit():
                wrong = result[:place] + str((int(digit) + 1) % 10) + result[place + 1 :]
                with pytest.raises(SumError, match=each.key):
                    outcomes(replace(each, **{name: (f"{head} {relation} {wrong}",)}))


@pytest.mark.parametrize("each", entries(), ids=lambda each: each.key)
def test_every_entry_cites_sources_that_exist(each: Fact) -> None:
    assert each.sources
    for citation in each.sources:
        record = source(citation.source)
        assert citation.strength in ("DK" if record.kind == "derivation" else "PCSK")
        assert citation.strength != "P" or record.arxiv
        assert citation.strength != "P" or not record.read.startswith("not read")


@pytest.mark.parametrize("each", facts(), ids=lambda each: each.key)
def test_a_claim_that_is_not_right_says_what_is(each: Fact) -> None:
    assert each.verdict == "right" or each.right
    assert each.claim.endswith((".", "."))
    assert not each.right or each.right.endswith(".")


def test_every_source_is_used_and_complete() -> None:
    used = {citation.source for each in entries() for citation in each.sources}
    further = {"yang2024qwen2"}  # read for the census of models
    assert {record.key for record in sources()} == used | further
    for record in sources():
        if record.kind in ("inproceedings", "preprint"):
            assert re.fullmatch(r"\d{4}\.\d{4,5}", record.arxiv), record.key
            assert record.authors
            assert record.title
            assert record.read
        assert (record.kind == "inproceedings") == bool(record.venue)
    numbers = [record.arxiv for record in sources() if record.arxiv]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    ("key", "number", "year", "first"),
    [
        ("vaswani2017", "1706.03762", 2017, "Vaswani, Ashish"),
        ("voita2019", "1905.09418", 2019, "Voita, Elena"),
        ("michel2019", "1905.10650", 2019, "Michel, Paul"),
        ("clark2019", "1906.04341", 2019, "Clark, Kevin"),
        ("shazeer2019", "1911.02150", 2019, "Shazeer, Noam"),
        ("ainslie2023", "2305.13245", 2023, "Ainslie, Joshua"),
        ("deepseekv2", "2405.04434", 2024, "{DeepSeek-AI}"),
        ("gemma2024", "2403.08295", 2024, "{Gemma Team}"),
        ("bhojanapalli2020", "2002.07028", 2020, "Bhojanapalli, Srinadh"),
    ],
)
def test_records_of_the_main_papers(key: str, number: str, year: int, first: str) -> None:
    record = source(key)
    assert (record.arxiv, record.year, record.authors[0]) == (number, year, first)


def test_an_unknown_source_names_the_nearest() -> None:
    with pytest.raises(ManyheadsError, match="vaswani2017"):
        source("vaswani2018")


@pytest.mark.parametrize(
    ("key", "figures"),
    [  # what a careful reader looks for first
        ("A7", ["rows (A)", "Rows (B)"]),
        ("A9", ["newstest2013"]),
        ("A44", ["25.5", "0.3"]),
        ("A46", ["4.91"]),
        ("A38", ["39.2", "41.29"]),
        ("A23", ["8·T·d²"]),
        ("A24", ["4T²d"]),
        ("A54", ["6.3×", "5.4×"]),
        ("A56", ["Table 9", "16B"]),
        ("A57", ["24.9"]),
        ("N2", ["56.9"]),
        ("A61", ["7B and 13B are MHA"]),
        ("A63", ["32B (40/8)"]),
        ("A64", ["MQA"]),
        ("A59", ["Command R v01", "Qwen1.5-72B", "OLMo-2-13B"]),
        ("A48", ["38 of 48", "0.15"]),
        ("A51", ["not run"]),
        ("A30", ["transposed"]),
        ("A31", ["blocked"]),
        ("A21", ["Gemma-7B", "T5-11B"]),
    ],
)
def test_the_errors_readers_catch_first_are_corrected(key: str, figures: list[str]) -> None:
    assert fact(key).verdict in ("wrong", "imprecise")
    assert [figure for figure in figures if figure not in fact(key).right] == []


def test_the_quoted_tables_hold_the_papers_figures() -> None:
    assert [tuple(map(str, row)) for row in entry("vaswani-heads").rows] == [
        ("1", "512", "5.29", "24.9", "-0.9"),
        ("4", "128", "5.00", "25.5", "-0.3"),
        ("8", "64", "4.92", "25.8", "0.0"),
        ("16", "32", "4.91", "25.8", "0.0"),
        ("32", "16", "5.01", "25.4", "-0.4"),
    ]
    assert [tuple(map(str, row[1:])) for row in entry("vaswani-results").rows][-4:] == [
        ("26.30", "41.16"),
        ("26.36", "41.29"),
        ("27.3", "38.1"),
        ("28.4", "41.8"),
    ]
    assert [tuple(map(str, row[1:])) for row in entry("ainslie-speed").rows] == [
        ("0.37", "46.0"),
        ("1.51", "47.2"),
        ("0.24", "46.6"),
        ("0.28", "47.1"),
    ]
    assert [tuple(map(str, row[2:])) for row in entry("shazeer-cost").rows] == [
        ("1.7", "46"),
        ("1.5", "3.8"),
        ("2.0", "203"),
        ("1.6", "32"),
    ]


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.key)
def test_the_rows_of_a_table_fit_its_columns(table) -> None:
    assert {len(row) for row in table.rows} == {len(table.columns)}


def test_the_weights_of_the_table_are_the_sums_below_it() -> None:
    table = entry("attention-weights")
    sums = {outcome.label: outcome.value for outcome in outcomes(table)}
    rows = {row[0]: row[-1] for row in table.rows}
    assert len(rows) == len(sums) == 17
    for label, value in sums.items():
        name = label.partition(", bias")[0]
        assert rows[name] == value


def test_importing_the_room_reads_no_file(python) -> None:
    program = (
        "import sys, builtins; import manyheads.errors; opened = []; old = builtins.open\n"
        "builtins.open = lambda *a, **k: (opened.append(a[0]), old(*a, **k))[1]\n"
        "import manyheads.facts as f; assert not opened and 'tomllib' not in sys.modules, opened\n"
        "assert f.fact('a38').verdict == 'wrong'; first = len(opened); assert first\n"
        "f.fact('A1'); f.facts(); assert len(opened) == first, opened\n"
        "assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
