"""Where each canonical weight lies in a model's files, and what else is there: every stored tensor is used or named."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import torch

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.verify import located
from manyheads.errors import CheckpointError
from manyheads.models.store_files import Files
from manyheads.quoting import shown, shown_path
from manyheads.spec.stack import StackSpec

__all__ = ["Places"]

_ROWS_AT_ONCE = 4096
_SCALES = ("_scale_inv", "_scale")


class Places:
    """The stored tensors of a model whose headers agree with its description.

    items     how each is made of canonical weights, by its name in the files
    left_out  those that are no weights of the model: heads of other tasks, the parts around a text model

    Raises CheckpointError for weights that a quantisation packed, and for a head that is tied and stored differently.
    """

    def __init__(self, family: Family, stack: StackSpec, files: Files) -> None:
        self.items = located(family, stack, files.shapes)
        where = shown_path(files.path)
        self._check_unpacked(files.shapes, where)
        aliases = self._aliases(family, stack, files)
        nothing = [re.compile(pattern.replace("{layers}", str(stack.layers))) for pattern in family.ignored]
        self.left_out = tuple(
            name for name in files.shapes
            if name not in self.items and name not in aliases and not any(each.search(name) for each in nothing)
        )  # fmt: skip
        for alias in aliases:
            self._check_tied(alias, files, where)

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

    def _aliases(self, family: Family, stack: StackSpec, files: Files) -> tuple[str, ...]:
        """Names under which the files store the tied head a second time."""
        if stack.head != "tied":
            return ()
        untied = located(family, replace(stack, head="untied"), files.shapes)
        return tuple(name for name in untied if name in files.shapes and name not in self.items)

    def _check_tied(self, alias: str, files: Files, where: str) -> None:
        """A head that is tied by its configuration and stored too must be the embeddings (case O68): neither is lost."""
        tokens = next(name for name, item in self.items.items() if item.parts[0].name == "tokens")
        for at in range(0, files.shapes[tokens][0], _ROWS_AT_ONCE):
            if not torch.equal(files.rows(alias, at, at + _ROWS_AT_ONCE), files.rows(tokens, at, at + _ROWS_AT_ONCE)):
                raise CheckpointError(
                    f"{where}: its configuration ties the head to the embeddings, but {shown(alias)} and {shown(tokens)} "
                    "differ; set tie_word_embeddings to false to keep both"
                )
