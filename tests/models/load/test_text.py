"""The text that comes with the package, and those of users."""

from __future__ import annotations

import hashlib
import os
import re

import pytest

from manyheads.errors import ManyheadsError
from manyheads.models.load.text import SHIPPED, read_text, shipped_text

# Figures are compared by this: a text that changes gets another file name, and the old file stays.
SHA256 = {"reading-1.txt": "c01be806feddbb0837fc118fc3f3ce3e77b2624f9c9b17ebc4319b010b320b8e"}


def test_the_shipped_text_is_the_one_that_its_name_says() -> None:
    own = shipped_text()
    assert (own.name, own.shipped) == (SHIPPED, True)
    assert own.sha256 == SHA256[SHIPPED] == hashlib.sha256(own.text.encode()).hexdigest()


def test_it_is_prose_that_does_not_repeat_itself() -> None:
    text = shipped_text().text
    words = re.findall(r"[a-z']+", text.lower())
    assert 4_000 < len(words) < 6_000
    assert len(set(words)) / len(words) > 0.2
    paragraphs = [line for line in text.splitlines() if len(line) > 40]
    assert len(set(paragraphs)) == len(paragraphs)
    assert text.isascii()


def test_a_text_of_the_user_is_read_as_it_is(tmp_path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes("\ufeffzwölf Boxkämpfer\n".encode())
    own = read_text(str(path))
    assert (own.name, own.text, own.shipped) == ("mine.txt", "zwölf Boxkämpfer\n", False)
    assert own.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


BAD = {
    "empty": (b"", "empty"),
    "blank": (b" \n\t ", "empty"),
    "binary": (b"MZ\x00\x01rest", "zero bytes"),
    "latin-1": (b"caf\xe9 au lait", "byte 0xe9 at offset 3"),
    "utf-16": ("abc".encode("utf-16"), "zero bytes"),
}


@pytest.mark.parametrize(("content", "found"), BAD.values(), ids=BAD)
def test_what_is_no_text_is_refused_in_one_line(tmp_path, content: bytes, found: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(ManyheadsError) as error:
        read_text(str(path))
    assert found in str(error.value)
    assert "UTF-8" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", "a\0b", "missing.txt", "."])
def test_what_is_no_file_is_refused(tmp_path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ManyheadsError, match=r"no such file|not a possible path|a directory"):
        read_text(name)


def test_what_has_no_end_or_never_begins_is_not_read(tmp_path, monkeypatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("/dev/zero", str(tmp_path / "pipe")):
        with pytest.raises(ManyheadsError, match=r"^[^-].*: is not a regular file .*; expected a text file in UTF-8$"):
            read_text(name)
    monkeypatch.setattr("manyheads.models.load.text._MOST_BYTES", 100)
    (tmp_path / "long").write_text("a" * 101)
    with pytest.raises(ManyheadsError, match="long: 101 bytes; expected a text file in UTF-8, at most 100 bytes"):
        read_text(str(tmp_path / "long"))
