"""Layers, blocks, stacks and models as JSON: versioned and lossless.

Every dataclass is an object with its fields in full and its "type"; the outermost also names the "schema". Reading
fills in defaults for fields that are absent, and "type" may be absent where only one kind can stand. Equal blocks in a
row are written once, as {"repeat": 21, "items": [block, block]}; floats read back exactly. Both ways follow the fields
of the dataclasses, so that a new field or kind needs no code here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from manyheads.errors import SpecError
from manyheads.quoting import shown
from manyheads.spec.attention import AttentionSpec
from manyheads.spec.fold import runs
from manyheads.spec.stack import MOST_LAYERS, Block, Stack, StackSpec
from manyheads.spec.syntax import short, suggest

__all__ = ["SCHEMA", "Described", "from_json", "from_json_text", "to_json", "to_json_text"]

SCHEMA = "manyheads.spec/1"

Described = AttentionSpec | Block | Stack | StackSpec


def to_json(spec: Described) -> dict[str, Any]:
    """`spec` as a JSON object: from_json(to_json(spec)) == spec."""
    if not isinstance(spec, Described):
        raise SpecError(f"JSON describes {_names(get_args(Described))}; found {type(spec).__name__}")
    return {"schema": SCHEMA, **_write(spec)}


def from_json(value: object) -> Described:
    """The AttentionSpec, Block, Stack or StackSpec that a JSON object describes; a SpecError names the path that is wrong."""
    if not isinstance(value, Mapping):
        raise SpecError(f"a description in JSON must be an object, found {short(value)}")
    if value.get("schema") != SCHEMA:
        raise SpecError(f"schema must be {shown(SCHEMA)}, found {short(value.get('schema'))}")
    found: Described = _read_object(
        {key: item for key, item in value.items() if key != "schema"}, get_args(Described), ""
    )
    return found


def to_json_text(spec: Described) -> str:
    """`spec` as JSON text, two spaces deep, for a file."""
    return json.dumps(to_json(spec), indent=2, allow_nan=False) + "\n"


def from_json_text(text: str) -> Described:
    """What `to_json_text` wrote; broken JSON, a key given twice and NaN are a SpecError."""
    try:
        return from_json(json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse))
    except RecursionError:
        raise SpecError("broken JSON: nested too deep") from None
    except SpecError:
        raise
    except ValueError as error:  # of the decoder; also a number of more than 4,300 digits
        raise SpecError(f"broken JSON: {error}") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(key for key, _ in pairs)
        raise SpecError(f"broken JSON: {short(next(key for key in times if times[key] > 1))} is given twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise SpecError(f"broken JSON: {constant} is no number")


def _names(kinds: Sequence[type]) -> str:
    return ", ".join(kind.__name__ for kind in kinds)


def _write(value: Any) -> Any:
    if is_dataclass(value):
        return {"type": type(value).__name__, **{f.name: _write(getattr(value, f.name)) for f in fields(value)}}
    if not isinstance(value, tuple):
        return value
    if not value or not is_dataclass(value[0]):
        return [_write(item) for item in value]
    written: list[Any] = []
    for period, times in runs(value):
        items = [_write(item) for item in period]
        written += items if times == 1 else [{"repeat": times, "items": items}]
    return written


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(value: object, hint: Any, path: str) -> Any:
    """`value` as the field type `hint`: a scalar, a tuple, a dataclass, or a union of them."""
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    if value is None and NoneType in kinds:
        return None
    classes: list[type] = [kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)]
    if classes:
        return _read_object(value, classes, path)
    kind = next(kind for kind in kinds if kind is not NoneType)
    if get_origin(kind) is tuple:
        return _read_row(value, get_args(kind)[0], path)
    return _read_scalar(
        value, str if get_origin(kind) is Literal else kind, path
    )  # which words, the class checks itself


def _read_scalar(value: object, kind: type, path: str) -> Any:
    wanted, valid = {
        int: ("an integer", isinstance(value, int) and not isinstance(value, bool)),
        float: ("a number", isinstance(value, int | float) and not isinstance(value, bool)),
        bool: ("true or false", isinstance(value, bool)),
        str: ("a string", isinstance(value, str)),
    }[kind]
    if not valid:
        raise SpecError(f"{path} must be {wanted}, found {short(value)}")
    return value


def _read_row(value: object, hint: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise SpecError(f"{path} must be a list, found {short(value)}")
    found: list[Any] = []
    for index, item in enumerate(value):
        here = f"{path}[{index}]"
        if is_dataclass(hint) and isinstance(item, Mapping) and "repeat" in item:
            found += _read_run(item, hint, here, len(found))
        else:
            found.append(_read(item, hint, here))
    return tuple(found)


def _read_run(run: Mapping[str, object], hint: Any, path: str, before: int) -> list[Any]:
    times, items = run["repeat"], run.get("items")
    if set(run) != {"repeat", "items"} or not isinstance(items, list) or not items:
        raise SpecError(f"{path} must hold repeat and items, a list of one or more; found {short(dict(run))}")
    if not isinstance(times, int) or isinstance(times, bool) or times < 1:
        raise SpecError(f"{path}.repeat must be an integer of 1 or more, found {short(times)}")
    if before + times * len(items) > MOST_LAYERS:
        raise SpecError(f"{path}.repeat makes {before + times * len(items)} layers, at most {MOST_LAYERS} are read")
    return [_read(item, hint, f"{path}.items[{index}]") for index, item in enumerate(items)] * times


def _read_object(value: object, kinds: Sequence[type], path: str) -> Any:
    place = path or "the description"
    if not isinstance(value, Mapping):
        raise SpecError(f"{place} must be an object ({_names(kinds)}), found {short(value)}")
    kind = _kind(value, kinds, place)
    hints, values = _hints(kind), {}
    for key, item in value.items():
        if key == "type":
            continue
        here = f"{path}.{key}" if path else str(key)
        if key not in hints:
            raise SpecError(f"{short(here)} is not a field of {kind.__name__}" + suggest(str(key), hints))
        values[key] = _read(item, hints[key], here)
    for f in fields(kind):
        if f.name not in values and f.default is MISSING:
            raise SpecError(f"{path + '.' if path else ''}{f.name} is missing: {kind.__name__} has no default for it")
    try:
        return kind(**values)
    except SpecError as error:
        raise SpecError(f"{path}: {error}" if path else str(error)) from None


def _kind(value: Mapping[str, object], kinds: Sequence[type], place: str) -> Any:
    named = value.get("type")
    if named is None and len(kinds) == 1:
        return kinds[0]
    found = next((kind for kind in kinds if kind.__name__ == named), None)
    if found is None:
        raise SpecError(f"{place} has type {short(named)}" + suggest(str(named), [kind.__name__ for kind in kinds]))
    return found
