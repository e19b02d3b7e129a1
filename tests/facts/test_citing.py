"""Bibliographies: BibTeX that balances and is plain ASCII, CSL-JSON with the words of its schema, RIS from TY to ER."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from manyheads.facts import fact, source, sources
from manyheads.facts.citing import bibtex, cited_works, csl, is_work, ris
from manyheads.facts.records import Source

WORKS = tuple(record for record in sources() if is_work(record))

HOSTILE = Source(
    key="hostile",
    kind="preprint",
    title="50% of R&D: $x_1$ # {a} \\b ~c ^d",
    authors=("Øster, Zoë", "Müller-Łuk, Ñandú", "{AT&T}"),
    year=2020,
    arxiv="2001.00001",
)


def fields(record: str) -> dict[str, str]:
    """The fields of one BibTeX record, read by counting braces as BibTeX does."""
    found = {}
    for name in re.finditer(r"^  (\w+) = \{", record, re.MULTILINE):
        depth, at = 1, name.end()
        while depth:
            escaped = record[at - 1] == "\\"
            depth += {"{": 1, "}": -1}.get(record[at], 0) if not escaped else 0
            at += 1
        found[name[1]] = record[name.end() : at - 1]
        assert record[at] == ","
    return found


@pytest.mark.parametrize("work", [*WORKS, HOSTILE], ids=lambda work: work.key)
def test_bibtex_is_ascii_balanced_and_complete(work: Source) -> None:
    record = bibtex([work])
    assert record.isascii()
    unescaped = re.sub(r"\\[{}]", "", record)
    assert unescaped.count("{") == unescaped.count("}")
    found = fields(record)
    assert {"title", "author", "year"} <= set(found)
    kind = "inproceedings" if work.venue else "misc"
    assert record.startswith(f"@{kind}{{{work.key},\n")
    assert ("booktitle" in found) == (kind == "inproceedings")
    assert found.get("eprint", "") == work.arxiv
    assert found["author"].count(" and ") + 1 == len(work.authors) + work.more_authors


def test_bibtex_escapes_what_latex_would_obey() -> None:
    found = fields(bibtex([HOSTILE]))
    assert found["title"].replace("{R\\&D:}", "R\\&D:") == (
        "50\\% of R\\&D: \\$x\\_1\\$ \\# \\{a\\} \\textbackslash{}b \\textasciitilde{}c \\textasciicircum{}d"
    )
    assert found["author"] == ('{\\O}ster, Zo{\\"{e}} and M{\\"{u}}ller-{\\L}uk, {\\~{N}}and{\\\'{u}} and {AT\\&T}')


def test_bibtex_keeps_capitals_names_and_accents() -> None:
    found = fields(bibtex([source("ainslie2023")]))
    assert found["title"].startswith("{GQA:} Training Generalized {Multi-Query}")
    assert "de Jong, Michiel and" in found["author"]
    assert "Lebr{\\'{o}}n, Federico" in found["author"]
    assert found["pages"] == "4895--4901"
    assert fields(bibtex([source("deepseekv2")]))["author"] == "{DeepSeek-AI}"
    assert fields(bibtex([source("yang2024qwen2")]))["author"] == "Yang, An and others"


def test_csl_uses_the_words_of_its_schema() -> None:
    items = json.loads(csl(WORKS))
    assert [item["id"] for item in items] == [work.key for work in WORKS]
    allowed = {"id", "type", "title", "author", "issued", "container-title", "page", "version"}
    allowed |= {"archive", "number", "URL"}
    for item in items:
        assert set(item) <= allowed
        assert item["type"] in ("paper-conference", "article", "software")
        assert isinstance(item["issued"]["date-parts"][0][0], int)
        for name in item["author"]:
            assert set(name) in ({"literal"}, {"family", "given"}, {"family", "given", "non-dropping-particle"})


def test_csl_takes_names_apart() -> None:
    (item,) = json.loads(csl([source("kalchbrenner2016")]))
    assert {"family": "Oord", "given": "Aaron", "non-dropping-particle": "van den"} in item["author"]
    (item,) = json.loads(csl([source("jiang2023mistral")]))
    assert {"family": "Le Scao", "given": "Teven"} in item["author"]
    assert {"family": "Casas", "given": "Diego", "non-dropping-particle": "de las"} in item["author"]


def test_ris_records_run_from_ty_to_er() -> None:
    lines = ris(WORKS).split("\n")
    assert all(re.fullmatch(r"[A-Z][A-Z0-9]  - .*", line) for line in lines if line)
    tags = Counter(line[:2] for line in lines if line)
    assert tags["TY"] == tags["ER"] == tags["ID"] == tags["TI"] == tags["PY"] == len(WORKS)
    for record in ris(WORKS).split("\n\n"):
        told = record.strip("\n").split("\n")
        assert told[0][:2] == "TY"
        assert told[-1] == "ER  - "
        assert [line[:2] for line in told].count("TY") == 1
    assert "AU  - Kaiser, Łukasz" in lines
    assert "AU  - Llama Team, AI @ Meta" in lines


def test_each_cited_work_comes_once_and_derivations_not_at_all() -> None:
    assert [work.key for work in cited_works([fact("A54"), fact("B16"), fact("B17"), fact("A4")])] == [
        "ainslie2023",
        "shazeer2019",
    ]
    assert cited_works([fact("A4")]) == ()
