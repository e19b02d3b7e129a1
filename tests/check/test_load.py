"""Loading FILE.py:FUNCTION and its settings: what is wrong is one line."""

from __future__ import annotations

import types

import pytest

pytest.importorskip("torch")
from manyheads.check.load import Loaded, load, settings_of
from manyheads.check.requests import chosen_cases, subject_and_wishes
from manyheads.errors import ManyheadsError
from support.check_support import ASKED

GOOD = """
from neighbour import number
MANYHEADS_CHECK = {"mask": "visible", "no": ["window"], "names": {"q": "a"}, "fixed": {"x": 1}, "tolerance": 1e-3}
def attention(a, b, c, x): return a
def other(q, k, v): return q
other.manyheads_check = {"mask": "blocked"}
class Attention:
    @staticmethod
    def inside(q, k, v): return q
    def of_an_object(self, q, k, v): return q
three = 3
"""


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "mine.py") -> str:
        (tmp_path / "neighbour.py").write_text("number = 1\n")
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_functions_and_what_is_in_classes(file) -> None:
    path = file(GOOD)
    assert load(path, "attention").thing.__name__ == "attention"
    assert load(path, "Attention.inside").thing.__name__ == "inside"
    assert load(path, "Attention.inside").owner is None
    assert load(path, "Attention").thing.__name__ == "Attention"
    assert load(path, "Attention.of_an_object").owner.__name__ == "Attention"


def test_a_file_called_torch_does_not_stand_for_torch(file) -> None:
    import sys

    before = sys.modules["torch"]
    assert load(file("def f(q, k, v): return q\n", "torch.py"), "f").thing.__name__ == "f"
    assert sys.modules["torch"] is before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("atention", "has no function 'atention'; its functions are attention, other; its classes are Attention"),
        ("three", "is a int, not a function"),
        ("Attention.outside", "has no function 'Attention.outside'"),
    ],
)
def test_functions_that_are_none(file, name, message) -> None:
    with pytest.raises(ManyheadsError, match=message):
        load(file(GOOD), name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(q, k, v)\n    return q\n", r"cannot be loaded: line 1: expected ':'"),
        ("\nimport no_such_module\n", r"ModuleNotFoundError: No module named 'no_such_module' \(line 2\)"),
        ("import sys\nsys.exit(0)\n", r"it calls sys.exit\(0\) \(line 2\)"),
        ("x = 1\n1 / 0\n", r"ZeroDivisionError: division by zero \(line 2\)"),
        ("raise KeyError\n", r"KeyError"),
        ("x = 1\n", r"it defines no function"),
    ],
)
def test_files_that_cannot_be_loaded(file, text, message) -> None:
    with pytest.raises(ManyheadsError, match=message) as error:
        load(file(text), "f")
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_python(file) -> None:
    with pytest.raises(ManyheadsError, match="is not a Python file"):
        load(file("x", "notes.txt"), "f")


def test_settings_of_the_module_and_of_the_function_over_them(file) -> None:
    path = file(GOOD)
    assert settings_of(load(path, "attention"))["mask"] == "visible"
    assert settings_of(load(path, "other"))["mask"] == "blocked"
    assert settings_of(load(path, "other"))["no"] == ["window"]


def test_the_command_line_comes_before_the_file(file) -> None:
    loaded = load(file(GOOD), "attention")
    asked = {**ASKED, "file": "mine.py", "function": "attention"}
    subject, wishes, _ = subject_and_wishes(loaded, asked)
    assert (wishes.mask, wishes.no, wishes.names, wishes.fixed) == ("visible", ("window",), {"q": "a"}, {"x": 1})
    assert subject.tolerance == 1e-3
    told = {**asked, "mask": "additive", "no": ["causal"], "names": {"q": "b"}, "tolerance": 1e-2, "dtype": "fp64"}
    subject, wishes, _ = subject_and_wishes(loaded, told)
    assert (wishes.mask, wishes.no, wishes.names) == ("additive", ("window", "causal"), {"q": "b"})
    assert (subject.tolerance, str(subject.dtype)) == (1e-2, "torch.float64")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("['mask']", "MANYHEADS_CHECK must be a dict"),
        ("{'masks': 'visible'}", "has the key 'masks'; valid are layout, mask"),
        ("{'no': 'window'}", "no in MANYHEADS_CHECK must be a list"),
        ("{'require': ['windows']}", "there is no feature 'windows'; the features are"),
        ("{'names': 3}", "must be dicts"),
        ("{'dtype': 'int8'}", "'int8' is not one of fp32"),
        ("{'tolerance': 'small'}", "the tolerance must lie between 0 and 1, found 'small'"),
        ("{'layout': 'hbtd'}", "'hbtd' is not one of bhtd"),
    ],
)
def test_settings_that_cannot_be(file, settings, message) -> None:
    loaded = load(file(f"MANYHEADS_CHECK = {settings}\ndef f(q, k, v): return q\n"), "f")
    with pytest.raises(ManyheadsError, match=message):
        subject_and_wishes(loaded, {**ASKED, "file": "", "function": "f"})


def test_a_device_that_is_not_there() -> None:
    loaded = Loaded(len, types.ModuleType("nothing"), "len")
    with pytest.raises(ManyheadsError, match="the device 'abacus' cannot be used"):
        subject_and_wishes(loaded, {**ASKED, "file": "", "function": "f", "device": "abacus"})


def test_cases_are_chosen_by_name_and_by_suite() -> None:
    from manyheads.check.catalogue import CASES

    assert [case.name for case in chosen_cases(CASES, ["scale", "windows"])] == [
        "scale", "window", "window-cache", "window-one", "window-wide", "window-past",
    ]  # fmt: skip
    with pytest.raises(ManyheadsError, match="there is no check 'windw'; did you mean window"):
        chosen_cases(CASES, ["windw"])
