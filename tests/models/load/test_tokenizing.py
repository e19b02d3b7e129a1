"""Tokenizers that panic, hang or explode: told in one line, and never in this process."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import transformers
from tokenizers import Tokenizer, models

from manyheads.errors import ManyheadsError
from manyheads.models.load import tokenizing
from manyheads.models.load.model import _tokenizer
from manyheads.models.load.text import Reading, shipped_text
from manyheads.models.load.tokenizing import check_texts, tokenized, trial
from manyheads.models.scoring import first_tokens

VOCABULARY = {"<unk>": 0, "<s>": 1, **{chr(code): code for code in range(32, 127)}}


def replaced(by: str, what: str = "e") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": what}, "content": by}


def template(*pieces: str, known: dict[str, int]) -> dict[str, Any]:
    single = [
        {"Sequence": {"id": "A", "type_id": 0}} if each == "A" else {"SpecialToken": {"id": each, "type_id": 0}}
        for each in pieces
    ]
    pair = [{"Sequence": {"id": each, "type_id": 0}} for each in "AB"]
    tokens = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in known.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def write(folder: Path, **parts: Any) -> Path:
    """A folder with a tokenizer of single letters, and parts of it as a test says."""
    made = json.loads(Tokenizer(models.BPE(VOCABULARY, [], unk_token="<unk>")).to_str())
    (folder / "tokenizer.json").write_text(json.dumps(made | parts))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BROKEN = {
    "a missing token of a template": ({"post_processor": template("<gone>", "A", known={})}, "breaks: no entry found"),
    "a fixed length of 0": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "breaks: chunk size must be non-zero"),
    "an empty prepend": (
        {"normalizer": {"type": "Prepend", "prepend": ""}, "pre_tokenizer": BYTES}, "breaks: index out of bounds",
    ),
    "an endless expression": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "([a-z ]+)+$"}, "behavior": "Isolated", "invert": False}},
        "breaks: Onig",
    ),
    "a long replacement": ({"normalizer": replaced("b" * 1000)}, "tokens of 24,677 characters"),
    "a long template": (
        {"post_processor": template(*["<s>"] * 10_000, "A", known={"<s>": 1})}, "makes 10,003 tokens of 3 characters",
    ),
    "a decoder that adds": ({"decoder": replaced("b" * 1000)}, "characters of 24,677 characters"),
}  # fmt: skip


@pytest.mark.parametrize(("parts", "said"), BROKEN.values(), ids=BROKEN)
def test_what_breaks_or_explodes_is_one_line_and_no_tokenizer(tmp_path: Path, capfd, parts: Any, said: str) -> None:
    assert len(shipped_text().text) == 24_677
    tokenizer, why = _tokenizer(str(write(tmp_path, **parts)))
    assert tokenizer is None
    assert why.startswith("no tokenizer that can be used: its tokenizer.json ")
    assert said in why
    assert "\n" not in why
    assert capfd.readouterr() == ("", "")  # not a word of its library's about a panic


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": replaced("b" * 1_000_000)},
        {"normalizer": {"type": "Sequence", "normalizers": [replaced("ee")] * 40}},
    ],
    ids=["at once", "doubled 40 times"],
)
def test_what_takes_gigabytes_takes_them_elsewhere(tmp_path: Path, monkeypatch, parts: Any) -> None:
    pytest.importorskip("resource")
    monkeypatch.setattr(tokenizing, "MEMORY_BYTES", 2**29)
    began = time.perf_counter()
    why = trial(str(write(tmp_path, **parts)), [shipped_text().text])
    assert why.startswith(
        "its tokenizer.json takes more than 536,870,912 bytes, or ends its process (memory allocation of"
    )
    assert time.perf_counter() - began < 30


def test_what_takes_too_long_is_ended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tokenizing, "SECONDS", 0.001)
    assert trial(str(write(tmp_path)), ["a"]) == "its tokenizer.json takes more than 0.001 s"


def test_what_works_is_used_and_tried_once(tmp_path: Path, monkeypatch) -> None:
    tokenizer, why = _tokenizer(str(write(tmp_path)))
    assert why == ""
    assert tokenizer("a b")["input_ids"] == [97, 32, 98]
    own = Reading("own.txt", "a b c", "", shipped=False)
    assert first_tokens(tokenizer, own, 4) == ([97, 32, 98, 32], True)
    runs = tokenizing.subprocess.run
    monkeypatch.setattr(tokenizing.subprocess, "run", lambda *_, **__: pytest.fail("tried again"))
    assert first_tokens(tokenizer, own, 4)[0] == [97, 32, 98, 32]
    monkeypatch.setattr(tokenizing.subprocess, "run", runs)


def test_a_text_of_the_users_own_is_tried_too(tmp_path: Path) -> None:
    tokenizer, why = _tokenizer(str(write(tmp_path, normalizer=replaced("b" * 1000, what="\u00a7"))))
    assert why == ""
    with pytest.raises(ManyheadsError, match=r"cannot be tokenised: its tokenizer.json makes 1,000,\d+ tokens of 1,00"):
        first_tokens(tokenizer, Reading("own.txt", "\u00a7" * 1000 + "aa", "", shipped=False), 4000)


def test_letters_that_it_does_not_know_are_told_by_whoever_reads_them(tmp_path: Path) -> None:
    # A tokenizer of proteins without an unknown token: its own texts are fine, ours is not
    model = {"type": "WordLevel", "vocab": {"MK": 0, "VL": 1}, "unk_token": "<gone>"}
    write(tmp_path, model=model, pre_tokenizer={"type": "WhitespaceSplit"})
    assert trial(str(tmp_path), [shipped_text().text]) == ""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert tokenized(tokenizer, "MK VL")["input_ids"] == [0, 1]


def test_where_there_is_nothing_to_try_nothing_is_tried(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tokenizing.subprocess, "run", lambda *_, **__: pytest.fail("tried"))
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert trial("", ["a"]) == ""  # a tokenizer that was made in memory, whatever lies in the current folder
    assert trial(str(tmp_path / "none"), ["a"]) == ""
    check_texts(object(), ["a"])


def test_a_panic_in_this_process_is_an_error_like_others(tmp_path: Path, capfd) -> None:
    write(tmp_path, pre_tokenizer={"type": "FixedLength", "length": 0})
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    with pytest.raises(ManyheadsError, match="the tokenizer breaks on a text of 3 characters: chunk size"):
        tokenized(tokenizer, "a b")
    with pytest.raises(KeyboardInterrupt):
        tokenized(lambda text: (_ for _ in ()).throw(KeyboardInterrupt()).__next__(), "a")
    capfd.readouterr()
