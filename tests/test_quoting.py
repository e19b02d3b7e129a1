from __future__ import annotations

import time
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import BackendError, CheckpointError, ConversionError, ManyheadsError, SpecError
from manyheads.quoting import cut, one_line, shown, shown_name, shown_path, visible

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner), st.dictionaries(st.text(), inner)),
)


def test_what_a_terminal_would_obey_is_shown() -> None:
    assert visible("a\x1b[31mred\x07\x9b0m\x7f") == "a\\x1b[31mred\\x07\\x9b0m\\x7f"
    assert visible("llama\u202egnp.exe\u2028") == "llama\\u202egnp.exe\\u2028"
    assert visible("a\tb\nc\rd") == "a\\x09b\\x0ac\\x0dd"
    assert visible("a\nb\rc", keep_lines=True) == "a\nb\\x0dc"


def test_other_text_is_left_alone() -> None:
    assert visible("modèle 注意 2 × 80 µs") == "modèle 注意 2 × 80 µs"


@given(st.text())
def test_nothing_that_moves_the_cursor_is_left(text: str) -> None:
    assert all(character.isprintable() or ord(character) > 0x9F for character in visible(text))


@given(JSON)
def test_a_value_is_shown_as_repr_writes_it_as_far_as_the_line_goes(value) -> None:
    whole = repr(value)
    assert shown(value) == (whole if len(whole) <= 80 else whole[:77] + "...")


@pytest.mark.parametrize(
    "value",
    ["a" * 10**7, b"a" * 10**7, [1] * 10**6, {str(n): n for n in range(10**5)}, [["a" * 10**7] * 100] * 100, 10**5000],
    ids=["text", "bytes", "list", "dict", "nested", "number"],
)
def test_of_a_large_value_only_the_beginning_is_looked_at(value) -> None:
    began = time.perf_counter()
    for _ in range(100):
        assert len(shown(value)) <= 80
    assert time.perf_counter() - began < 1.0


def test_nesting_deeper_than_python_can_follow_is_shown_too() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "[" * 77 + "..."


def test_other_values() -> None:
    assert shown(MappingProxyType({"a": (1,)})) == "{'a': (1,)}"
    assert shown(10**5000) == "(int too large to print)"
    assert shown("x" * 50, 20) == "'xxxxxxxxxxxxxxxx..."


def test_names_and_paths_are_quoted_only_where_they_must_be() -> None:
    assert shown_name("model.layers.0.wq") == "model.layers.0.wq"
    assert shown_name("a\nb\x1b[2J") == r"'a\nb\x1b[2J'"
    assert shown_name("") == "''"
    assert shown_path("/models/two words") == "/models/two words"
    assert shown_path("/models/\udcff") == r"'/models/\udcff'"


def test_both_ends_of_a_long_path_are_shown() -> None:
    path = "/home/" + "x" * 5000 + "/config.json"
    text = shown_path(path)
    assert len(text) == 240
    assert text.startswith("/home/xxx")
    assert text.endswith("xxx/config.json")
    assert len(shown_path("\n" * 5000)) <= 240


@given(st.text(), st.integers(10, 40))
def test_what_is_cut_keeps_both_ends(text: str, most: int) -> None:
    made = cut(text, most)
    assert (
        made == text if len(text) <= most else (len(made) == most and made[:3] == text[:3] and made[-3:] == text[-3:])
    )


def test_one_line() -> None:
    assert one_line(" a\n  b\t c \x07", 80) == "a b c \\x07"
    assert len(one_line("\x1b" * 100_000, 80)) == 80


@pytest.mark.parametrize("kind", [ManyheadsError, SpecError, CheckpointError, ConversionError, BackendError])
def test_a_message_is_one_line_whatever_it_quotes(kind: type[ManyheadsError]) -> None:
    said = str(kind("m.json: " + "key\n\x1b[31m" * 10**6 + " is not known; valid: full"))
    assert said.startswith("m.json: key \\x1b[31mkey")
    assert said.endswith(" is not known; valid: full")
    assert len(said) <= 1000
    assert said.isprintable()
