"""JSON objects out of files that nobody vouches for, built whole: a model's config.json, and all else that is small."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from typing import Any, NoReturn

from manyheads.checkpoints.files import appearance, read_small
from manyheads.errors import CheckpointError
from manyheads.quoting import shown, shown_path

__all__ = ["MAX_CONFIG_BYTES", "MAX_VALUES", "load_json_object", "parse_json_object"]

# A configuration is a few kilobytes. With 21,843 labels twice over it is 1.5 MB; one that says the format of each matrix
# of each expert (256 in 58 layers, three matrices, four settings: 180,000 values) comes to some 6 MB.
MAX_CONFIG_BYTES = 8 * 2**20
MAX_VALUES = 2**18
_MAX_DEPTH = 64
_MAX_DIGITS = 39  # 128 bits: some configs hold 1e30 for "no limit"; sizes themselves are checked where they are used


# Published configs of Mamba-2 hybrids write [0.0, Infinity] here, and mean it: no limit.
_UNBOUNDED_KEYS = frozenset({"time_step_limit", "mamba_dt_limit"})

_KINDS = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}


class _Refused:
    """A number that JSON text should not hold; it stands in the parsed value until its key is known."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def load_json_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the JSON object in the file `path`, strictly: UTF-8, no key twice, every number finite.

    Infinity is accepted in the two keys in which published state-space configs use it (time_step_limit,
    mamba_dt_limit); a byte order mark is skipped.

    Raises CheckpointError, one line with the path, for a file that is missing, unreadable, a directory, larger than
    8 MiB, not UTF-8, not JSON (with line and column), not an object, or that holds more than 262,144 values, a key twice,
    NaN or an infinity, an integer beyond 128 bits, or more than 64 levels.
    """
    raw = read_small(path, wanted="a JSON file that holds a model's configuration", most=MAX_CONFIG_BYTES)
    return parse_json_object(raw, where=shown_path(path))


def parse_json_object(raw: bytes, *, where: str) -> dict[str, Any]:
    """Parse `raw` as `load_json_object` does; `where` begins every message."""
    values = sum(map(raw.count, (b",", b"[", b"{")))  # each value follows one of them; some stand inside of strings
    if values > MAX_VALUES:
        raise CheckpointError(
            f"{where}: some {values} values in {len(raw)} bytes of JSON; at most {MAX_VALUES} are read"
        )
    text = _decode(raw, where)
    refused: list[_Refused] = []

    def refuse(token: str) -> _Refused:
        refused.append(_Refused(token))
        return refused[-1]

    def integer(token: str) -> int | _Refused:
        return int(token) if len(token) <= _MAX_DIGITS else refuse(f"an integer of {len(token)} digits")

    def real(token: str) -> float | _Refused:
        value = float(token)
        return refuse(token if len(token) < 20 else "a float beyond 1.8e308") if math.isinf(value) else value

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            _refuse_repeated(pairs, where)
        return found

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_int=integer, parse_float=real, parse_constant=refuse)
    except json.JSONDecodeError as error:
        what = "is empty" if not text.strip() else f"is not JSON: line {error.lineno} column {error.colno}: {error.msg}"
        raise CheckpointError(f"{where}: {what}; expected a JSON object") from None
    except RecursionError:
        raise CheckpointError(f"{where}: JSON nested too deeply; at most {_MAX_DEPTH} levels are read") from None
    if not isinstance(value, dict):
        kind = _KINDS.get(type(value), "a number")
        raise CheckpointError(f"{where}: the JSON is {kind}, not an object {{...}} of settings")
    _check_depth(value, where)
    if refused:
        _replace_refused_numbers(value, "", where)
    _check_unicode(raw, value, where)
    return value


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            found = "is UTF-16"
        else:
            found = f"is not UTF-8 text (byte {error.start} is 0x{raw[error.start]:02x}): {appearance(raw[:64])}"
        raise CheckpointError(f"{where}: {found}; expected a JSON object in UTF-8") from None


def _refuse_repeated(pairs: list[tuple[str, Any]], where: str) -> NoReturn:
    times = Counter(key for key, _ in pairs)
    key = next(key for key in times if times[key] > 1)
    raise CheckpointError(f"{where}: the key {shown(key)} appears twice in one object; it must be given once")


def _check_depth(root: dict[str, Any], where: str) -> None:
    """Refuse nesting that later code would have to recurse through."""
    level: list[Any] = [root]
    for _ in range(_MAX_DEPTH):
        level = [
            value
            for container in level
            for value in (container.values() if isinstance(container, dict) else container)
            if isinstance(value, dict | list)
        ]
        if not level:
            return
    raise CheckpointError(f"{where}: JSON nested too deeply; at most {_MAX_DEPTH} levels are read")


def _replace_refused_numbers(container: Any, prefix: str, where: str) -> None:
    """Put the infinities that are meant in their place, and raise for every other refused number, by its key."""
    for name, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, dict | list):
            _replace_refused_numbers(value, key, where)
        elif isinstance(value, _Refused):
            if value.text != "Infinity" or _UNBOUNDED_KEYS.isdisjoint(key.split(".")):
                words = f"{shown(key)} is {value.text}"
                raise CheckpointError(f"{where}: {words}; every number must be finite and fit 128 bits")
            container[name] = math.inf


def _check_unicode(raw: bytes, value: dict[str, Any], where: str) -> None:
    """Refuse half a surrogate pair, which no file name, terminal or later JSON could hold."""
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise CheckpointError(f"{where}: a string holds half a surrogate pair (\\ud800 to \\udfff alone)") from None
