"""What the time of a token is made of: every module's own time, without that of the modules inside it."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from torch import nn

__all__ = ["PARTS", "Watch", "watching"]

ATTENTION = "attention itself, with turning the queries and keys"
CACHE = "appending to the cache"
LINEAR = "weights of the layers"
HEAD = "the output layer"
OTHER = "norms, activations, sums, embedding, masks"
PARTS = (LINEAR, HEAD, ATTENTION, CACHE, OTHER)


class Watch:
    """Seconds by part, summed over what ran while it watched."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[tuple[str, float]] = []
        self._inside: list[float] = []

    def enter(self, part: str) -> None:
        self._open.append((part, time.perf_counter()))
        self._inside.append(0.0)

    def leave(self) -> None:
        part, began = self._open.pop()
        whole = time.perf_counter() - began
        self.seconds[part] += whole - self._inside.pop()
        if self._inside:
            self._inside[-1] += whole

    def cache(self, cache: Any) -> None:
        """Watches the appends of this cache too."""
        update = cache.update

        def watched(*arguments: Any, **more: Any) -> Any:
            self.enter(CACHE)
            try:
                return update(*arguments, **more)
            finally:
                self.leave()

        cache.update = watched


@contextlib.contextmanager
def watching(model: nn.Module) -> Iterator[Watch]:
    """Watches every module of `model` while open."""
    watch = Watch()
    hooks = []
    for name, module in model.named_modules():
        part = _part(name, module)
        hooks.append(module.register_forward_pre_hook(lambda *_, part=part: watch.enter(part)))  # type: ignore[misc]
        hooks.append(module.register_forward_hook(lambda *_: watch.leave(), always_call=True))
    try:
        yield watch
    finally:
        for hook in hooks:
            hook.remove()


def _part(name: str, module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return (
            HEAD if name.rpartition(".")[2] in ("lm_head", "embed_out", "output") and "layers." not in name else LINEAR
        )
    if type(module).__name__ == "Conv1D":  # GPT-2's linear layer
        return LINEAR
    return ATTENTION if "Attention" in type(module).__name__ else OTHER
