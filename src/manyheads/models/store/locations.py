"""Where each canonical weight lies in a model's files, and what else is there: every stored tensor is used or named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.verify import copies_of, is_task_head, located
from manyheads.errors import CheckpointError
from manyheads.models.store.files import Files
from manyheads.quoting import shown, shown_path
from manyheads.spec.stack import StackSpec

__all__ = ["Places"]

_ROWS_AT_ONCE = 4096
_SCALES = ("_scale_inv", "_scale")


class Places:
    """The stored tensors of a model whose headers agree with its description.

    items     how each is made of canonical weights, by its name in the files
    left_out  those that are no weights of the model: heads of other tasks, the parts around a text model

    Of tensors that repeat others (`checkpoints.verify.copies_of`) neither has a trace. Raises CheckpointError for weights
    that a quantisation packed, and for a table that the configuration ties and the files hold with two values; a task's
    head that differs is one of its own.
    """

    def __init__(self, family: Family, stack: StackSpec, files: Files, config: Mapping[str, Any] | None = None) -> None:
        self.items = located(family, stack, files.shapes)
        where = shown_path(files.path)
        self._check_unpacked(files.shapes, where)
        copies = copies_of(family, stack, self.items, files.shapes, config or {})
        aliases = {name for name, original in copies.items() if self._repeats(family, name, original, files, where)}
        nothing = [re.compile(pattern.replace("{layers}", str(stack.layers))) for pattern in family.ignored]
        self.left_out = tuple(
            name for name in files.shapes
            if name not in self.items and name not in aliases and not any(each.search(name) for each in nothing)
        )  # fmt: skip

    def _check_unpacked(self, names: Iterable[str], where: str) -> None:
        """Blocks and scales stand in for some tensors of a quantised file: its header agrees, but its values do not."""
        known = set(names)
        for name in self.items:
            if name not in known:
                packed = next((other for other in sorted(known) if other.startswith(f"{name}_")), "nothing")
                raise CheckpointError(
                    f"{where}: {shown(name)} is stored as {shown(packed)} and more, packed by a quantisation, which is "
                    "not unpacked here; valid: weights in floating point"
                )
        scales = [name for name in known if name.endswith(_SCALES) and name not in self.items]
        if scales:
            raise CheckpointError(
                f"{where}: {shown(min(scales))} scales quantised weights, which are not unpacked here; valid: weights in "
                "floating point"
            )

    def _repeats(self, family: Family, name: str, original: str, files: Files, where: str) -> bool:
        """Whether a tied tensor is what it is tied to (case O68). One of the model must be: neither value is lost."""
        if _equal(name, original, files):
            return True
        if not is_task_head(family, name):
            raise CheckpointError(
                f"{where}: its configuration ties the head to the embeddings and makes one table of all, but {shown(name)} and "
                f"{shown(original)} differ; set tie_word_embeddings to false to keep both"
            )
        return False


def _equal(one: str, other: str, files: Files) -> bool:
    """Whether two stored tensors hold the same, some rows at a time."""
    rows = files.shapes[one][0] if files.shapes[one] else 1
    return all(
        torch.equal(files.rows(one, at, at + _ROWS_AT_ONCE), files.rows(other, at, at + _ROWS_AT_ONCE))
        for at in range(0, rows, _ROWS_AT_ONCE)
    )
