"""Positions that a model of images or sound put in itself, to fill up its last windows, tiles or chunks.

Nobody is told of them: they are zeros in what the module projects (Swin, DaViT, SAM 2), or positions that a mask hides from
themselves (the tiles of Llama 3.2's pictures, patches behind the smaller pictures of a batch).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

__all__ = ["NO_TEXT", "filled", "inputs_watched", "unwatch", "watch"]

NO_TEXT = re.compile("vision|visual|image|video|audio|speech|codec|qformer")
"""In the names of parts of a model that read no tokens."""

# By thread and attention module, since its forward began: which rows of what its linear layers were given are zeros, as
# (rows,) each. By module: the hooks, and how many open doors want them.
_zeros: dict[tuple[int, int], list[Tensor]] = {}
_hooks: dict[int, tuple[list[Any], int]] = {}
_lock = threading.Lock()


def inputs_watched(model: nn.Module, passing: Mapping[str, nn.Module]) -> dict[int, nn.Module]:
    """The attention modules of `passing`, by id, that may be given padding of the model's own: those that read no text."""
    other = getattr(model, "main_input_name", "input_ids") != "input_ids"
    return {id(module): module for path, module in passing.items() if other or NO_TEXT.search(path)}


def watch(modules: Mapping[int, nn.Module]) -> None:
    """Look at what the linear layers of these attention modules are given, until `unwatch`."""
    with _lock:
        for key, module in modules.items():
            hooks, doors = _hooks.get(key, ([], 0))
            if not doors:
                linear = [child for child in module.children() if isinstance(child, nn.Linear)]
                hooks = [module.register_forward_pre_hook(lambda *_, key=key: _forget(key))]
                hooks += [child.register_forward_pre_hook(lambda _, x, key=key: _seen(key, x)) for child in linear]
            _hooks[key] = (hooks, doors + 1)


def unwatch(modules: Mapping[int, nn.Module]) -> None:
    """Take back what `watch` put there; the last door to do so removes the hooks."""
    with _lock:
        for key in modules:
            hooks, doors = _hooks.pop(key)
            if doors > 1:
                _hooks[key] = (hooks, doors - 1)
                continue
            for hook in hooks:
                hook.remove()
            for left in [one for one in _zeros if one[1] == key]:
                del _zeros[left]


def _forget(key: int) -> None:
    """A forward begins: what its output projection was given the last time is no input of this one."""
    _zeros.pop((threading.get_ident(), key), None)


def _seen(key: int, given: tuple[Any, ...]) -> None:
    x = given[0] if given else None
    if isinstance(x, Tensor) and x.dim() > 1:
        _zeros.setdefault((threading.get_ident(), key), []).append((x.detach() == 0).all(-1).flatten())


def filled(module: nn.Module, batch: int, tokens: int) -> Tensor | None:
    """(b, t), True where what `module` projected for a call of these sizes were zeros; None where there is no such row.

    All rows being zeros is no padding but a picture of nothing.
    """
    seen = _zeros.pop((threading.get_ident(), id(module)), [])
    rows = next((rows for rows in seen if rows.numel() == batch * tokens), None)
    if rows is None or not bool(rows.any()) or bool(rows.all()):
        return None
    return rows.view(batch, tokens)
