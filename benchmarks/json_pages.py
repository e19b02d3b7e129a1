"""Writes docs/*-json.md from the records that the JSON is made of: python benchmarks/json_pages.py

A field's words are the text below it in its class, its type is the annotation, its place the order of the fields.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from manyheads.convert.record import ConversionReport
from manyheads.cost.price_record import Price
from manyheads.heads.overview.record import HeadsOverview
from manyheads.heads.pruning.record import PruningReport
from manyheads.report.jsonform import WHERE_ASKED
from manyheads.xray.record import XRay

DOCS = Path(__file__).parents[1] / "docs"
VERSIONS = (
    "A key is added without a new number in `schema`, and removed or changed only with one. Integers are exact, bytes are bytes, and "
    "a number that is not finite is null. This page is written from the code by `python benchmarks/json_pages.py`."
)
NAMES = {int: "integer", float: "number", str: "text", bool: "true or false", object: "any"}


@dataclass(frozen=True)
class Page:
    """One page: its file, its title and what stands around the tables of `record`."""

    file: str
    title: str
    record: type
    head: str = ""
    tail: str = ""


@dataclass
class Sections:
    """The records of a page in the order in which they are met, with the paths that lead to each."""

    paths: dict[type, list[str]] = field(default_factory=dict)

    def add(self, record: type, path: str) -> None:
        known = record in self.paths
        self.paths.setdefault(record, []).append(path)
        if known:
            return
        for _, name, kind, _ in rows(record):
            below = f"{path}.{name}" if path else name
            for inner, mark in records_in(kind):
                if record is inner or not any(inner is page.record for page in PAGES):  # those have a page of their own
                    self.add(inner, below + mark)


def page(page: Page) -> str:
    """The page as text."""
    sections = Sections()
    sections.add(page.record, "")
    parts = [f"# {page.title}", wrapped(page.head), wrapped(VERSIONS)]
    for record, paths in sections.paths.items():
        own = [path for path in paths if path]
        if record is not page.record:
            parts.append(f"## {', '.join(f'`{path}`' for path in own)}")
        parts += [*described(record), table(record, sections)]
    return "\n\n".join([*parts, *filter(None, [wrapped(page.tail)])]) + "\n"


def described(record: type) -> Iterator[str]:
    """What the class says of itself, and what it says of the keys that it shares with others."""
    for one in record.__mro__:
        if is_dataclass(one) and one.__doc__ and not one.__doc__.startswith(f"{one.__name__}("):
            yield wrapped(one.__doc__)


def wrapped(text: str) -> str:
    """A paragraph in lines of 120 characters."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def table(record: type, sections: Sections) -> str:
    """A row for each key."""
    lines = ["| key | type | what it is |", "|---|---|---|"]
    for optional, name, kind, words in rows(record):
        what = said(kind, sections)
        what = f"{what.removesuffix(' or null')}, or absent" if optional else what
        lines.append(f"| `{name}` | {what} | {words} |")
    return "\n".join(lines)


def rows(record: type) -> Iterator[tuple[bool, str, Any, str]]:
    """Of each key: whether it can be missing, its name, its type and its words."""
    kinds, words = get_type_hints(record), {}
    for one in reversed(record.__mro__):
        if is_dataclass(one):
            words |= dict(texts(one))
    for each in fields(record):
        name = each.metadata.get("json", each.name)
        if name is not None:
            yield each.metadata == WHERE_ASKED, name or each.name, kinds[each.name], words.get(each.name, "")


def texts(record: type) -> Iterator[tuple[str, str]]:
    """The fields of a class and the texts that stand below them in its source."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(body, ast.ClassDef)
    for one, below in zip(body.body, body.body[1:], strict=False):
        match one, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                yield name, " ".join(text.split())


def records_in(kind: Any, mark: str = "") -> Iterator[tuple[type, str]]:
    """The records that a type speaks of, "[]" behind the path of one that stands in a list."""
    if is_dataclass(kind) and isinstance(kind, type):
        yield kind, mark
    listed = get_origin(kind) in (tuple, list)
    for inner in get_args(kind):
        yield from records_in(inner, mark + "[]" * listed)


def said(kind: Any, sections: Sections) -> str:
    """A type in words."""
    origin, inner = get_origin(kind), [each for each in get_args(kind) if each is not types.NoneType]
    if origin is Literal:
        return (
            " or ".join(
                "`true`" if word is True else "`false`" if word is False else f"`{word}`"
                for word in inner
                if word != ""
            )
            or "text"
        )
    if origin in (Union, types.UnionType):
        null = " or null" if types.NoneType in get_args(kind) else ""
        return " or ".join(dict.fromkeys(said(each, sections) for each in inner)) + null
    if origin in (tuple, list):
        return f"list of {said(inner[0], sections)}" if inner[1:] in ([], [...]) else "list"
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return f"object of {said(inner[1], sections)}"
    return "object" if is_dataclass(kind) else NAMES.get(kind, "any")


PAGES = (
    Page(
        "cost-json.md", "The object of `manyheads cost --json`", Price,
        "`manyheads.price` returns the same as a frozen value, `manyheads.cost.price_record.Price`: the keys are its "
        "attributes, and `manyheads.report.jsonform.as_json` makes the object of it.",
        "Exit status: 0 done, 1 it does not fit in `--memory`, 2 the request or the input is wrong (one line on stderr, nothing "
        "on stdout).",
    ),
    Page(
        "xray-json.md", "The object of `manyheads xray --json`, which is xray.json too", XRay,
        "`manyheads.xray.run.xray` returns the same as a frozen value, and the maps that the page shows. A `head` is an address, "
        "`layer:head` counted from 0, with its `stage/` in front in an encoder-decoder model. Losses are in nats.",
    ),
    Page(
        "heads-json.md", "The object of `manyheads heads --json`", HeadsOverview,
        "`manyheads.heads.overview.run.overview` returns the same as a frozen value. A `head` is an address, `layer:head` counted "
        "from 0, with its `stage/` in front in an encoder-decoder model. What the figures are: [heads.md](heads.md).",
    ),
    Page(
        "prune-json.md", "The object of `manyheads prune --json`", PruningReport,
        "`manyheads.heads.pruning.run.pruning` returns the same as a frozen value. A head is an address, `layer:head` counted from 0 "
        "as in the model before its first pruning. What the words mean: [pruning.md](pruning.md).",
    ),
    Page(
        "convert-json.md", "The object of `manyheads convert --json`, which is conversion.json too", ConversionReport,
        "`manyheads.convert.run.convert` returns the same as a frozen value. Losses are in nats a token, ratios are of perplexities. "
        "What the words mean: [convert.md](convert.md).",
        "Exit status: 0 done, 1 it loses more than `--max-ratio` and nothing was written, 2 the request or the input is wrong.",
    ),
)  # fmt: skip


if __name__ == "__main__":
    for each in PAGES:
        (DOCS / each.file).write_text(page(each), encoding="utf-8")
