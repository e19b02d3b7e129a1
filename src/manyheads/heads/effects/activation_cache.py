"""Activation caching: blocks before the first that changes hand back what they returned in an earlier forward, and so does the
attention whose heads change, since that is done to its output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from manyheads.models.door.door import Call, open_door

__all__ = ["ActivationCache", "caching_activations"]

_ABSENT = object()


class ActivationCache:
    """What the blocks of a model returned, in the order of their calls, and which of them are skipped.

    Blocks are the elements of the lists of layers that hold attention. After `record` and a forward, `skip_to(path)` lets
    all forwards skip the blocks that were called before the first one around `path`; `skip_to(None)` skips none.

    It is also a form of the door, for the first call of the attention `path` in such a forward: its queries, keys and values
    are what they were, and so is what it gives.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._saved: list[Any] = []
        self._recording = False
        self._start = 0
        self._calls = 0
        self._outputs: dict[str, Tensor] = {}
        self._known: str | None = None

    def record(self) -> None:
        """The next forward is computed in full and kept."""
        self._names, self._saved = [], []
        self._recording, self._start, self._calls = True, 0, 0
        self._outputs, self._known = {}, None

    def skip_to(self, path: str | None) -> None:
        """The next forward, and only that, skips what comes before the first block around the module `path`."""
        self._recording, self._calls = False, 0
        self._known = path
        around = [i for i, name in enumerate(self._names) if path is not None and f"{path}.".startswith(f"{name}.")]
        self._start = around[0] if around else 0

    def prefix(self, path: str) -> int:
        """How many calls of blocks come before the first one around `path`."""
        return next((i for i, name in enumerate(self._names) if f"{path}.".startswith(f"{name}.")), 0)

    def call(self, name: str, compute: Callable[..., Any], args: Any, keywords: Any) -> Any:
        """A block's forward while the model is under `caching_activations`."""
        number = self._calls
        self._calls += 1
        if number < self._start:
            return self._saved[number]
        out = compute(*args, **keywords)
        if self._recording:
            self._names.append(name)
            self._saved.append(out)
        return out

    def see(self, call: Call, out: Tensor) -> None:
        """An observer of the door: keeps what each attention gives at its first call."""
        # What arrives at the projection behind a gate is not what attention gave: that is computed again.
        if self._recording and not call.projected and call.path not in self._outputs:
            self._outputs[call.path] = out.clone()

    def supports(self, call: Call) -> bool:
        """Whether what this attention gives is known."""
        return call.path == self._known and call.path in self._outputs

    def __call__(self, call: Call) -> Tensor:
        """What it gave; a copy, since a gate may write into it."""
        self._known = None
        return self._outputs[call.path].clone()


@contextmanager
def caching_activations(model: nn.Module, paths: Iterable[str]) -> Iterator[ActivationCache]:
    """The blocks of `model` that hold the attention modules `paths`, and their siblings, pass through an `ActivationCache`.

    Their forwards are put back as they were, also after an exception. Use it without gradients: what is kept has none, and
    inside the doors whose gates change heads.
    """
    cache, held, wanted = ActivationCache(), [], list(paths)
    try:
        for name, block in _blocks(model, wanted).items():
            held.append((block, block.__dict__.get("forward", _ABSENT)))
            block.forward = _through(cache, name, block.forward)
        with open_door(model, implementation=cache, observers=[cache.see]) if wanted else nullcontext():
            yield cache
    finally:
        for block, before in reversed(held):
            del block.__dict__["forward"]
            if before is not _ABSENT:
                block.__dict__["forward"] = before


def _through(cache: ActivationCache, name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compute)
    def forward(*args: Any, **keywords: Any) -> Any:
        return cache.call(name, compute, args, keywords)

    return forward


def _blocks(model: nn.Module, paths: list[str]) -> dict[str, nn.Module]:
    """The elements of the lists of layers. Of the lists around a module, the one that most of them share counts: the
    stack, not the two or three parts that a block may be written as."""
    modules = dict(model.named_modules())
    shared: dict[str, set[str]] = {}
    for path in paths:
        for parent, child in _levels(path):
            shared.setdefault(parent, set()).add(child)
    lists = {max(_levels(path), key=lambda level: len(shared[level[0]]))[0] for path in paths if _levels(path)}
    outer = {name for name in lists if not any(name.startswith(f"{other}.") for other in lists)}
    return {
        f"{name}.{child}" if name else child: block
        for name in sorted(outer)
        for child, block in modules[name].named_children()
    }


def _levels(path: str) -> list[tuple[str, str]]:
    """(list, element) of each numbered part of a path, the outermost first: of several that tie, max takes that."""
    parts = path.split(".")
    return [(".".join(parts[:i]), ".".join(parts[: i + 1])) for i, part in enumerate(parts) if part.isdigit()]
