"""What the command line and the user's file ask for, made into a subject and wishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from manyheads.check.case import Case
from manyheads.check.features import check_words
from manyheads.check.guess import Wishes
from manyheads.check.load import Loaded, settings_of
from manyheads.check.subject import Subject
from manyheads.check.targets import subject_of
from manyheads.errors import BackendError, SpecError
from manyheads.ops.dtypes import torch_dtype

__all__ = ["chosen_cases", "subject_and_wishes"]


def subject_and_wishes(loaded: Loaded, asked: Mapping[str, Any]) -> tuple[Subject, Wishes, tuple[str, ...]]:
    """`asked`: the command line, which comes before the file's MANYHEADS_CHECK. Third: the features required."""
    own = settings_of(loaded)
    no = (*_words(own, "no"), *asked["no"])
    required = (*_words(own, "require"), *asked["require"])
    names, fixed = own.get("names", {}), own.get("fixed", {})
    if not isinstance(names, Mapping) or not isinstance(fixed, Mapping):
        raise SpecError("names and fixed in MANYHEADS_CHECK must be dicts: {role: parameter} and {parameter: value}")
    wishes = Wishes(
        layout=asked["layout"] or str(own.get("layout", "")), mask=asked["mask"] or str(own.get("mask", "")),
        names={**names, **asked["names"]}, no=no, fixed=fixed,
    )  # fmt: skip
    dtype = asked["dtype"] or str(own.get("dtype", "fp32"))
    check_words(layout=wishes.layout, mask=wishes.mask, dtype=dtype, features=(*no, *required))
    tolerance = own.get("tolerance") if asked["tolerance"] is None else asked["tolerance"]
    if tolerance is not None and (not isinstance(tolerance, int | float) or not 0 < tolerance < 1):
        raise SpecError(f"the tolerance must lie between 0 and 1, found {tolerance!r}")
    options = {
        "name": asked["function"] if loaded.owner else asked["function"].rpartition(".")[2], "file": asked["file"],
        "device": _device(asked["device"]), "dtype": torch_dtype(dtype), "tolerance": tolerance,
        "seed": asked["seed"],
    }  # fmt: skip
    return subject_of(loaded, wishes, options), wishes, required


def chosen_cases(cases: Iterable[Case], only: Iterable[str], *, with_weights: bool = False) -> tuple[Case, ...]:
    """The cases that are named, or whose suite is; where nothing is named, all that such a subject may be asked."""
    cases, only = tuple(cases), tuple(only)
    known = {case.name for case in cases} | {case.suite for case in cases}
    strange = [name for name in only if name not in known]
    if strange:
        import difflib

        close = difflib.get_close_matches(strange[0], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise SpecError(f"there is no check {strange[0]!r}{hint}; manyheads check --list shows them")
    if not only:
        return tuple(case for case in cases if ("onnx" if with_weights else "projections") not in case.needs)
    return tuple(case for case in cases if case.name in only or case.suite in only)


def _words(own: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = own.get(key, ())
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SpecError(f"{key} in MANYHEADS_CHECK must be a list of features; found {value!r}")
    return tuple(str(word) for word in value)


def _device(name: str) -> str:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BackendError(f"the device {name!r} cannot be used: {' '.join(str(error).split())[:200]}") from error
    return name
