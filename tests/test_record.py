"""`record` keeps the promises of a frozen dataclass."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys

import pytest

from manyheads.record import record


@record
class Point:
    """Two numbers, and a remark that does not count."""

    x: int
    y: int = 2
    remark: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("negative")


@record(kw_only=True)
class Other:
    """The same fields as Point, another class."""

    x: int
    y: int = 2


def test_dataclass_functions_work():
    point = Point(1)
    assert dataclasses.replace(point, y=5) == Point(1, 5)
    assert dataclasses.asdict(point) == {"x": 1, "y": 2, "remark": ""}
    assert [f.name for f in dataclasses.fields(Point)] == ["x", "y", "remark"]
    assert repr(point) == "Point(x=1, y=2, remark='')"
    with pytest.raises(TypeError):
        Other(1)
    with pytest.raises(ValueError, match="negative"):
        dataclasses.replace(point, x=-1)


def test_equality_and_hash():
    assert Point(1) == Point(1, 2) != Point(1, 3)
    assert hash(Point(1)) == hash(Point(1, 2))
    assert Point(1, remark="a") == Point(1, remark="b")
    assert Point(1) != Other(x=1)
    assert Point(1) != (1, 2)
    assert len({Point(1), Point(1, 2), Point(2)}) == 2


@pytest.mark.parametrize("name", ["x", "y", "new", "__record_hash__"])
def test_nothing_can_be_set_or_deleted(name):
    point = Point(1)
    hash(point)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(point, name, 7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(point, name)
    assert point == Point(1)


def test_copies_and_pickles():
    point = Point(1)
    hash(point)
    for again in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert again == point
        assert hash(again) == hash(point)


def test_a_pickle_carries_no_hash_to_another_process():
    """String hashes differ from one process to the next; a kept hash must not travel."""
    make = "import pickle,sys; from manyheads.spec import Band, Norm; n = Norm(); hash(n); "
    make += "sys.stdout.buffer.write(pickle.dumps(n))"
    read = "import pickle,sys; from manyheads.spec import Norm; n = pickle.load(sys.stdin.buffer); "
    read += "assert n in {Norm()} and hash(n) == hash(Norm())"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
    data = subprocess.run([sys.executable, "-c", make], capture_output=True, check=True, env=environment).stdout
    subprocess.run([sys.executable, "-c", read], input=data, check=True, env=environment)
