"""docs/check.md says what the code does: every check, feature, role and setting, and the figures in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from manyheads.check.catalogue import CASES
from manyheads.check.features import FEATURES, LAYOUTS, POLARITIES, WEAK
from manyheads.check.load import SETTINGS
from manyheads.check.multihead.construct import BUILT
from manyheads.check.multihead.signature import CALLED
from manyheads.check.multihead.twins import TWINS as OF_MULTIHEAD
from manyheads.check.signature import ROLES
from manyheads.check.twins import TWINS
from manyheads.cli.main import build_parser

PAGE = (Path(__file__).parent.parent.parent / "docs/check.md").read_text()


def test_the_table_of_checks_is_the_catalogue() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \| (.*?) ?\| ?(.*?) ?\|$", PAGE.partition("## The checks")[2], re.M)
    told = [(name, proves, needs, re.findall(r"\[([^]]+)\]", links)) for name, proves, needs, links in rows]
    assert told == [(case.name, case.proves, ", ".join(case.needs), list(case.resembles)) for case in CASES]
    for thread in {thread for case in CASES for thread in case.resembles}:
        assert f"[{thread}](https://github.com/{thread.replace('#', '/issues/')})" in PAGE


@pytest.mark.parametrize("words", [FEATURES, LAYOUTS, POLARITIES], ids=["features", "layouts", "polarities"])
def test_words_are_explained(words) -> None:
    assert [word for word in words if f"`{word}`" not in PAGE] == []


def test_weaknesses_are_explained_and_are_those_that_judges_name() -> None:
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \|", PAGE.partition("## Wrong or weak")[2].partition("## In a course")[0], re.M
    )
    assert sorted(rows) == sorted(WEAK)
    assert set(WEAK) <= set(FEATURES)
    assert {case.demand for case in CASES} - {""} <= set(WEAK)


def test_roles_and_their_names_are_all_there() -> None:
    of_heads, of_calls, of_constructors = (
        dict(re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|$", part, re.M))
        for part in re.split(r"^In c", PAGE.partition("## Names")[2], flags=re.M)
    )
    for rows, table in ((of_heads, ROLES), (of_calls, CALLED), (of_constructors, BUILT)):
        assert {role: tuple(re.findall(r"`(\w+)`", names)) for role, names in rows.items()} == table


def test_settings_and_options_are_explained() -> None:
    block = PAGE.partition("MANYHEADS_CHECK = {")[2].partition("}\nattention")[0]
    assert set(re.findall(r'"(\w+)": ', block)) - {"window", "module"} == set(SETTINGS)
    flags = {flag for action in build_parser("check")._actions for flag in action.option_strings}
    assert set(re.findall(r"--[a-z]+", PAGE)) <= flags


def test_figures() -> None:
    assert f"puts {len(CASES)} questions" in PAGE
    assert (
        f"one fault each, {len(TWINS)} of them, and for multi-head attention {len(OF_MULTIHEAD) - len(TWINS)} more"
        in PAGE
    )
    assert "and 15 more in that file" in PAGE
    wrong = (Path(__file__).parent.parent.parent / "examples/check/wrong.py").read_text()
    assert wrong.count("\ndef ") == 16
