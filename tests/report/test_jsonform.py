"""The JSON of a report: exact, in order, and never something that another reader refuses."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.record import record
from manyheads.report import Report
from manyheads.report.jsonform import NOT_IN_JSON, WHERE_ASKED, as_json, dumps, encode, key


def test_integers_are_exact_and_keys_stay_in_order() -> None:
    report = Report("title", data={"schema": 1, "bytes": 2**70, "a": {"z": [1, 2.5, None, True], "b": "x"}})
    assert dumps(report) == (
        '{\n  "schema": 1,\n  "bytes": 1180591620717411303424,\n  "a": {\n    "z": [\n      1,\n      2.5,\n'
        '      null,\n      true\n    ],\n    "b": "x"\n  }\n}\n'
    )


def test_text_survives_any_terminal_and_comes_back_whole() -> None:
    data = {"model": "modèle × 注意 \x1b[2J \udcff"}
    assert encode(data).isascii()
    assert json.loads(encode(data)) == data


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_hold_is_refused_with_its_place(value: float) -> None:
    with pytest.raises(ValueError, match=rf"data\.what_if\[1\]\.bytes is {value}"):
        encode({"what_if": [{"bytes": 1}, {"bytes": value}]})


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.layers has the key 3"):
        encode({"layers": {3: "x"}})


def test_a_stranger_is_refused() -> None:
    with pytest.raises(TypeError, match=r"data\.shape is a range"):
        encode({"shape": range(3)})


@record
class Inner:
    loss: float
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outer:
    kind: str = field(metadata=key("class"))
    inner: tuple[Inner, ...]
    budget: int | None = field(default=None, metadata=WHERE_ASKED)
    picture: object = field(default=None, metadata=NOT_IN_JSON)
    change: float | None = None


def test_a_record_is_an_object_of_its_fields_in_order() -> None:
    made = Outer("Cache", (Inner(math.nan), Inner(-math.inf, (1, 2))), picture=range(3))
    assert list(as_json(made).items()) == [
        ("class", "Cache"),
        ("inner", [{"loss": None, "counts": []}, {"loss": None, "counts": [1, 2]}]),
        ("change", None),
    ]
    assert as_json(Outer("Cache", (), budget=0)) == {"class": "Cache", "inner": [], "budget": 0, "change": None}


def test_what_is_no_json_is_left_for_the_check_that_names_its_place() -> None:
    with pytest.raises(TypeError, match=r"data\.inner\[0\] is a range"):
        encode(as_json(Outer("Cache", (range(3),))))  # type: ignore[arg-type]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(st.dictionaries(st.text(), VALUES))
def test_everything_that_json_holds_comes_back(data: dict[str, object]) -> None:
    assert json.loads(encode(data)) == data
