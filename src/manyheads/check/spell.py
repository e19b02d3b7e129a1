"""Problems, rows and places as a person reads them; and a call as Python that can be pasted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from manyheads.check.problem import Problem
    from manyheads.check.subject import Subject

__all__ = [
    "MOST_NUMBERS",
    "array_as_code",
    "call_as_code",
    "place",
    "row",
    "seen_keys",
    "size_of",
    "value_as_code",
]

MOST_NUMBERS = 120


def row(values: Tensor) -> str:
    """A few numbers, short: [0.25, -1, nan]."""
    shown = [_number(value) for value in values.flatten()[:6].tolist()]
    return "[" + ", ".join(shown + (["..."] if values.numel() > 6 else [])) + "]"


def place(index: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Where in (b, h, t, v): axes of one entry are left out."""
    names = ("batch", "head", "query")
    parts = [f"{name} {at}" for name, at, size in zip(names, index, shape, strict=False) if size > 1 or name == "query"]
    return ", ".join(parts)


def seen_keys(weights: Tensor, tolerance: float) -> str:
    """Weights of one row that are all equal, as the keys that are seen; other rows as numbers."""
    if not bool(weights.isfinite().all()):
        return row(weights)
    keys = (weights.abs() > tolerance).nonzero().flatten().tolist()
    if not keys:
        return "sees no key: zeros"
    values = weights[keys]
    share = f" ({_number(values[0].item())} each)" if len(keys) > 1 else f" ({_number(values[0].item())})"
    if float(values.max() - values.min()) > tolerance:
        return f"weights {row(weights)}"
    return f"sees {_ranges(keys)}{share}"


def _ranges(keys: list[int]) -> str:
    if len(keys) == 1:
        return f"key {keys[0]}"
    if keys == list(range(keys[0], keys[-1] + 1)):
        return f"keys {keys[0]} to {keys[-1]}"
    return "keys " + ", ".join(map(str, keys))


def call_as_code(subject: Subject, problem: Problem) -> str:
    """Python that makes the call again with a prepared problem; where it would be long, what the call holds."""
    given: dict[str, Any] = {**subject.arguments(problem), **subject.fixed}
    arrays = {name: value for name, value in given.items() if hasattr(value, "shape")}
    if sum(size_of(value) for value in arrays.values()) > MOST_NUMBERS:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in arrays.items())
        return f"too long to print: {shapes}; seed {subject.seed}"
    lines = [f"{name} = {array_as_code(value)}" for name, value in arrays.items()]
    words = [f"{name}={name}" if name in arrays else f"{name}={value_as_code(value)}" for name, value in given.items()]
    return "\n".join([*lines, f"{subject.name}({', '.join(words)})"])


def size_of(value: Any) -> int:
    """How many numbers."""
    return int(value.numel()) if isinstance(value, Tensor) else int(value.size)


def array_as_code(value: Any) -> str:
    """A tensor or an array, in the words of its library."""
    if isinstance(value, Tensor):
        value = value.detach()
        usual = value.dtype == torch.float32 or not value.is_floating_point()
        return _filled(value, "torch", "" if usual else f", dtype={value.dtype}")
    tensor = torch.from_numpy(value)
    dtype = "" if value.dtype.kind == "b" else f", dtype=np.{value.dtype.name}"
    return _filled(tensor, "np", dtype)


def _filled(value: Tensor, library: str, dtype: str) -> str:
    if value.numel() == 0 or (value.is_floating_point() and not bool(value.any())):
        maker = f"{library}.zeros({tuple(value.shape)}"
        return f"{maker}{dtype})"
    name = "tensor" if library == "torch" else "array"
    return f"{library}.{name}({_nested(value.tolist(), library)}{dtype})"


def _nested(value: Any, library: str) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_nested(item, library) for item in value) + "]"
    if isinstance(value, bool):
        return str(value)
    if value in (float("inf"), float("-inf")):
        return f"{'-' if value < 0 else ''}{library}.inf"
    text = _number(value)
    return text if "." in text or "e" in text else f"{text}."


def value_as_code(value: Any) -> str:
    """A number or a yes."""
    return f"{value:.9g}" if isinstance(value, float) else repr(value)


def _number(value: float) -> str:
    text = f"{value:.6g}"
    return "0" if text == "-0" else text
