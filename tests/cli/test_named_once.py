"""A model that is named is looked for once, whatever the verb then does with it."""

from __future__ import annotations

import os
import sys
from collections import Counter

import pytest

from manyheads.checkpoints import locate
from manyheads.cli.main import main

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("numba")

SHORT = ["--tokens", "40"]
WORDS = {
    "cost": [],
    "explain": [],
    "heads": [*SHORT, "--no-roles", "--importance", "none"],
    "prune": [*SHORT, "--heads", "0:0-1"],
    "xray": [*SHORT, "--no-heads"],
}


@pytest.mark.parametrize("verb", WORDS)
def test_one_look_and_one_listing(verb: str, llama, here, monkeypatch, capsys) -> None:
    counts: Counter[str] = Counter()
    located, listdir = locate._located, os.listdir

    def looking(text: str) -> locate.Located:
        counts[text] += 1
        return located(text)

    def listing(path="."):
        caller = sys._getframe(1).f_globals["__name__"]
        counts["listings"] += caller.startswith("manyheads.checkpoints") and os.path.realpath(path) == str(llama)
        return listdir(path)

    monkeypatch.setattr(locate, "_located", looking)
    monkeypatch.setattr(os, "listdir", listing)
    assert main([verb, str(llama), *WORDS[verb], "--json"]) == 0, capsys.readouterr().err
    assert (counts[str(llama)], counts["listings"]) == (1, 1)
