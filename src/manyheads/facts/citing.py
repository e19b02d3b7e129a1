"""Bibliographic records in the forms that reference managers read: BibTeX, CSL-JSON, RIS."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable

from manyheads.facts.records import Entry, Source

__all__ = ["STYLES", "bibtex", "cited_works", "csl", "is_work", "ris"]

_KINDS = {  # what a record is called in CSL and in RIS
    "inproceedings": ("paper-conference", "CONF"),
    "preprint": ("article", "UNPB"),
    "software": ("software", "COMP"),
}
_ARXIV = "https://arxiv.org/abs/"
_ESCAPES = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "ł": "{\\l}",
    "Ł": "{\\L}",
    "ø": "{\\o}",
    "Ø": "{\\O}",
    "ß": "{\\ss}",
    "æ": "{\\ae}",
    "Æ": "{\\AE}",
}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
    "\u0328": "k",
}


def is_work(source: Source) -> bool:
    """Whether a source can be cited: a paper or a program; not a bundle of files, nor what was derived here."""
    return source.kind in _KINDS


def cited_works(entries: Iterable[Entry]) -> tuple[Source, ...]:
    """The works that entries cite, each once, in the order of first use."""
    from manyheads.facts.library import source

    keys = dict.fromkeys(citation.source for entry in entries for citation in entry.sources)
    return tuple(work for work in map(source, keys) if is_work(work))


def bibtex(works: Iterable[Source]) -> str:
    """Records for BibTeX, in plain ASCII, capitals that must stay in braces."""
    return "\n".join(_bibtex_record(work) for work in works)


def _bibtex_record(work: Source) -> str:
    names = [_bibtex_name(name) for name in work.authors] + (["others"] if work.more_authors else [])
    fields = [("title", _keeping_capitals(work.title)), ("author", " and ".join(names)), ("year", str(work.year))]
    if work.venue:
        fields.append(("booktitle", _escaped(work.venue)))
    if work.pages:
        fields.append(("pages", work.pages.replace("-", "--")))
    if work.version:
        fields.append(("note", f"Version {_escaped(work.version)}"))
    if work.arxiv:
        fields += [("eprint", work.arxiv), ("archiveprefix", "arXiv"), ("url", _ARXIV + work.arxiv)]
    elif work.url:
        fields.append(("url", work.url))
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields)
    return f"@{'inproceedings' if work.venue else 'misc'}{{{work.key},\n{lines}}}\n"


def _bibtex_name(name: str) -> str:
    return f"{{{_escaped(name[1:-1])}}}" if _is_group(name) else _escaped(name)


def _keeping_capitals(title: str) -> str:
    """Styles put titles in lower case but for the first letter: words with a capital further on are held in braces."""
    words = title.split(" ")
    return " ".join(f"{{{_escaped(word)}}}" if re.search(r"\w.*[A-Z]", word) else _escaped(word) for word in words)


def _escaped(text: str) -> str:
    return "".join(_escaped_letter(letter) for letter in unicodedata.normalize("NFC", text))


def _escaped_letter(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    parts = unicodedata.normalize("NFD", letter)
    if len(parts) == 2 and parts[1] in _ACCENTS:
        return f"{{\\{_ACCENTS[parts[1]]}{{{parts[0]}}}}}"
    return letter


def csl(works: Iterable[Source]) -> str:
    """A CSL-JSON array, as citation processors and reference managers read it."""
    return json.dumps([_csl_item(work) for work in works], indent=2, ensure_ascii=True) + "\n"


def _csl_item(work: Source) -> dict[str, object]:
    names = [_csl_name(name) for name in work.authors] + ([{"literal": "others"}] if work.more_authors else [])
    item: dict[str, object] = {"id": work.key, "type": _KINDS[work.kind][0], "title": work.title, "author": names}
    item["issued"] = {"date-parts": [[work.year]]}
    if work.venue:
        item["container-title"] = work.venue
    if work.pages:
        item["page"] = work.pages
    if work.version:
        item["version"] = work.version
    if work.arxiv:
        item |= {"archive": "arXiv", "number": f"arXiv:{work.arxiv}", "URL": _ARXIV + work.arxiv}
    elif work.url:
        item["URL"] = work.url
    return item


def _csl_name(name: str) -> dict[str, str]:
    if _is_group(name):
        return {"literal": name[1:-1]}
    family, _, given = name.partition(", ")
    particle = " ".join(word for word in family.split(" ") if word.islower())
    if not particle:
        return {"family": family, "given": given}
    return {"family": family.removeprefix(f"{particle} "), "given": given, "non-dropping-particle": particle}


def ris(works: Iterable[Source]) -> str:
    """Records in RIS, each from its TY line to its ER line."""
    return "\n".join(_ris_record(work) for work in works)


def _ris_record(work: Source) -> str:
    lines = [("TY", _KINDS[work.kind][1]), ("ID", work.key), ("TI", work.title)]
    lines += [("AU", name.strip("{}")) for name in work.authors] + ([("AU", "others")] if work.more_authors else [])
    lines.append(("PY", str(work.year)))
    if work.venue:
        lines.append(("T2", work.venue))
    if work.pages:
        first, _, last = work.pages.partition("-")
        lines += [("SP", first), ("EP", last)]
    if work.version:
        lines.append(("ET", work.version))
    if work.arxiv:
        lines += [("AN", f"arXiv:{work.arxiv}"), ("UR", _ARXIV + work.arxiv)]
    elif work.url:
        lines.append(("UR", work.url))
    lines.append(("ER", ""))
    return "".join(f"{tag}  - {value}\n" for tag, value in lines)


def _is_group(name: str) -> bool:
    return name.startswith("{")


STYLES = {"bibtex": bibtex, "csl": csl, "ris": ris}
"""The forms by name."""
