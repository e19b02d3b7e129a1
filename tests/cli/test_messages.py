"""Whatever stands on a command line, what is said of it is one line that can be read and moves no terminal."""

from __future__ import annotations

import argparse

import pytest

from manyheads.cli.main import VERBS, build_parser, main

# Those of `bench` and `check` run before they are all looked at.
QUICK = [verb for verb in VERBS if verb not in ("bench", "check")]
HOSTILE = {"escapes": "\x1b[2J\n\u202e" + "y" * 500, "long": "y" * 100_000, "brackets": "(((", "digits": "9" * 5000}


def flags(verb: str) -> list[str]:
    """The options of a verb that take a value."""
    return [
        action.option_strings[-1]
        for action in build_parser(verb)._actions
        if action.option_strings and action.nargs is None and isinstance(action, argparse._StoreAction | argparse._AppendAction)
    ]  # fmt: skip


@pytest.mark.parametrize("word", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("verb", QUICK)
def test_every_option_takes_anything_and_says_one_line_of_it(
    verb: str, word: str, capsys, monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    model = {"facts": [], "models": [], "cost": ["llama-2-7b"]}.get(verb, ["x"])
    for words in [[verb, word], *([verb, *model, f"{flag}={word}"] for flag in flags(verb))]:
        status = main(words)
        out, err = capsys.readouterr()
        assert status in (0, 1, 2), words
        assert err.count("\n") <= 1
        assert err.removesuffix("\n").isprintable(), words
        assert len(err) <= 1001
        assert "bug" not in err
        assert "\x1b" not in out
        assert "\u202e" not in out


def test_a_model_whose_folder_has_an_odd_name(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    name = "a\x1b[2Jb\nc"
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text('{"hidden_size": 64, "' + "k" * 100_000 + '": 1}')
    assert main(["cost", name]) == 2
    assert capsys.readouterr().err.startswith(r"manyheads: 'a\x1b[2Jb\nc/config.json': no num_attention_heads")
