"""Weights by their canonical names (`manyheads.spec.inventory`), whatever the family's names, fusions and orders in its files.

    with open_store("path/to/model") as store:
        store.layer("decoder", 3)["decoder.layers.3.self.q"]      # (h, q, m)

The tables that a header is checked against (`checkpoints.families`) say where each weight lies; here tensors are moved by
them, both ways, bit for bit. Headers are read first, tensors when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from manyheads.checkpoints.families import named
from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layout import expected_tensors
from manyheads.checkpoints.reading import Checkpoint, Named, located, open_model
from manyheads.checkpoints.tensors import TensorInfo
from manyheads.checkpoints.verify import check_header
from manyheads.errors import CheckpointError
from manyheads.models.store.files import Files, GgufFile, InMemory, SafetensorsFiles
from manyheads.models.store.locations import Places
from manyheads.models.store.patterns import from_rows, put_together, rows_of, take_apart
from manyheads.ops.dtypes import safetensors_name
from manyheads.quoting import few, shown, shown_path
from manyheads.spec.inventory import weights
from manyheads.spec.stack import StackSpec

if TYPE_CHECKING:
    pass

__all__ = ["Store", "open_store", "to_canonical", "to_stored"]


def to_canonical(family: Family | str, stack: StackSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The canonical weights of `stack` from the tensors of a whole model, named as files of `family` name them.

    They may share memory with `tensors`. A model without its head, or without what its family may leave out, gives what
    it has; heads of other tasks have no canonical name and are an error here.

    Raises CheckpointError, one line, for the first tensor of another shape, for tensors that are missing, and for
    tensors that nothing explains: every one is used or named.
    """
    known = named(family) if isinstance(family, str) else family
    infos = {
        name: TensorInfo(name, safetensors_name(tensor.dtype), tuple(tensor.shape), tensor.nbytes)
        for name, tensor in tensors.items()
    }
    checked = check_header(infos, known, stack, source=known.name)
    if checked is None:
        raise AssertionError("a check without a configuration names no quantisation")
    places = Places(known, checked.stack, InMemory(known.name, tensors))
    if places.left_out:
        some = f"{len(places.left_out)} tensors ({few(places.left_out)})"
        raise CheckpointError(f"{known.name}: {some} are no weights of the model itself")
    found: dict[str, Tensor] = {}
    experts: dict[str, list[Tensor]] = {}
    for name, item in places.items.items():
        parts = take_apart(item, tensors[name])
        if item.index < 0:
            found.update(parts)
        for part, tensor in parts.items() if item.index >= 0 else ():
            experts.setdefault(part, []).append(tensor)
    return found | {name: torch.stack(each) for name, each in experts.items()}


def to_stored(family: Family | str, stack: StackSpec, canonical: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that files of `family` hold for `stack`, by their names there, from all its canonical weights.

    Raises CheckpointError, one line, for weights that are missing, of another shape, or not of the model.
    """
    known = named(family) if isinstance(family, str) else family
    check_names(stack, canonical, source=known.name)
    expected = expected_tensors(known, stack)
    return {name: put_together(item, canonical) for name, item in expected.items()}


def check_names(stack: StackSpec, names: Iterable[str], *, source: str) -> None:
    """Raises CheckpointError unless `names` are those of all weights of `stack`."""
    wanted, found = {weight.name for weight in weights(stack)}, set(names)
    said = [
        f"{len(which)} {what} ({few(sorted(which))})"
        for which, what in ((wanted - found, "are missing"), (found - wanted, "are not of the model"))
        if which
    ]
    if said:
        raise CheckpointError(f"{source}: the model has {len(wanted)} weights; of those given {'; '.join(said)}")


class Store(Mapping[str, Tensor], AbstractContextManager["Store"]):
    """The weights of one checkpoint: a mapping from canonical names to tensors, each read when it is asked for.

    checkpoint  what the files' headers say: stack, family, configuration, notes
    left_out    names of stored tensors that are no weights of the model: heads of other tasks, the parts around a text
                model; `other(name)` reads one
    """

    def __init__(self, checkpoint: Checkpoint, family: Family, files: Files, *, added: float = 0.0) -> None:
        self.checkpoint = checkpoint
        self.family = family
        self._files = files
        self._added = added
        places = Places(family, checkpoint.stack, files, checkpoint.config)
        self.left_out = places.left_out
        self._places = places.items
        self._homes: dict[str, list[str]] = {}
        for name, item in self._places.items():
            for weight in item.parts:
                self._homes.setdefault(weight.name, []).append(name)
        self._names = tuple(w.name for w in weights(checkpoint.stack) if w.name in self._homes)

    @property
    def stack(self) -> StackSpec:
        """What the model is."""
        return self.checkpoint.stack

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """The .safetensors file, counted from 0, of each stored part of a weight (experts have several), by its canonical
        name, and of each tensor of `left_out`; empty for files of other formats."""
        numbers = self._files.numbers
        held = {name: tuple(numbers[home] for home in homes if home in numbers) for name, homes in self._homes.items()}
        return {name: files for name, files in held.items() if files} | {
            name: (numbers[name],) for name in self.left_out if name in numbers
        }

    def names(self) -> tuple[str, ...]:
        """All canonical names, in the inventory's order."""
        return self._names

    def tensor(self, name: str) -> Tensor:
        """One weight, in memory of its own. Raises CheckpointError where the model has none of that name."""
        homes = self._homes.get(name)
        if homes is None:
            raise CheckpointError(f"{shown_path(self._files.path)}: the model has no weight {shown(name)}")
        if len(homes) > 1 or self._places[homes[0]].index >= 0:
            each = [take_apart(self._places[home], self._files.read(home))[name] for home in homes]
            return torch.stack(each)
        item = self._places[homes[0]]
        rows = rows_of(item, name)
        if rows is not None:
            return self._own(name, from_rows(item, name, self._files.rows(homes[0], *rows)))
        return self._own(name, take_apart(item, self._files.read(homes[0]))[name])

    def layer(self, role: str, index: int) -> dict[str, Tensor]:
        """All weights of layer `index` of the stack `role` ("decoder" or "encoder"); each stored tensor is read once."""
        begin = f"{role}.layers.{index}."
        wanted = [name for name in self._names if name.startswith(begin)]
        if not wanted:
            depths = ", ".join(f"{stack.role} with {len(stack.blocks)} layers" for stack in self.stack.stacks)
            raise CheckpointError(f"{shown_path(self._files.path)}: no layer {index} of {shown(role)}; it has {depths}")
        found: dict[str, list[Tensor]] = {name: [] for name in wanted}
        for home in dict.fromkeys(home for name in wanted for home in self._homes[name]):
            for name, part in take_apart(self._places[home], self._files.read(home)).items():
                found[name].append(part)
        return {
            name: torch.stack(parts) if self._places[self._homes[name][0]].index >= 0 else self._own(name, parts[0])
            for name, parts in found.items()
        }

    def attention(self, role: str, index: int, which: str = "self") -> dict[str, Tensor]:
        """The weights of one attention ("self" or "cross"), by their names inside it: "q", "q.bias", "q_norm.weight"."""
        begin = f"{role}.layers.{index}.{which}."
        wanted = [name for name in self._names if name.startswith(begin)]
        if not wanted:
            where = shown_path(self._files.path)
            raise CheckpointError(f"{where}: layer {index} of {shown(role)} has no weights of {shown(which)} attention")
        return {name.removeprefix(begin): self.tensor(name) for name in wanted}

    def other(self, name: str) -> Tensor:
        """A stored tensor of `left_out`, by its name in the files."""
        if name not in self.left_out:
            raise CheckpointError(f"{shown_path(self._files.path)}: {shown(name)} is not among what was left out")
        return self._files.read(name)

    def close(self) -> None:
        """Let go of the files; nothing can be read after that."""
        self._files.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._homes:
            raise KeyError(name)
        return self.tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _own(self, name: str, part: Tensor) -> Tensor:
        """A part in memory of its own, so that the rest of what was stored with it can go; norms as the family has them."""
        if self._added and name.endswith("norm.weight"):
            return part - self._added
        part = part.contiguous()
        return part.clone() if part.untyped_storage().nbytes() != part.nbytes else part


def open_store(model: Named | Checkpoint, *, assume: str = "") -> Store:
    """The weights of a folder with config.json and .safetensors, of a .safetensors file beside its config, or of a .gguf.

    GGUF is dequantised to float32 and brought into the family's own order and values; other files keep their types.

    Raises CheckpointError, one line: for what `checkpoints.open_model` refuses, for files without weights, pickles,
    weights packed by a quantisation, and a tied head that is stored with other values than the embeddings.
    """
    found = model.located if isinstance(model, Checkpoint) else located(model)
    if found.kind not in ("folder", "safetensors", "gguf"):
        raise CheckpointError(
            f"{shown_path(found.text)}: a {found.kind}, which holds no weights; valid: a folder with config.json and "
            ".safetensors, a .safetensors file beside its config.json, or a .gguf file"
        )
    checkpoint = model if isinstance(model, Checkpoint) else open_model(found, assume=assume)
    family = named(checkpoint.family)
    if found.kind == "gguf":
        from manyheads.checkpoints.gguf_header import read_gguf
        from manyheads.checkpoints.gguf_model import gguf_family

        header = read_gguf(found.text)
        if header.metadata.get("split.count", 1) != 1:
            raise CheckpointError(
                f"{shown_path(found.text)}: one of {header.metadata['split.count']} parts of a split GGUF file, whose "
                "weights are not read; valid: one file (`llama-gguf-split --merge` joins them)"
            )
        added = float(family.gain == "1+w")
        return Store(checkpoint, gguf_family(family, header), GgufFile(header), added=added)
    if checkpoint.parameters_stored is None:
        packed = checkpoint.stored_bytes is not None
        raise CheckpointError(
            f"{shown_path(found.text)}: "
            + ("its weights are packed by a quantisation, which is not unpacked here; valid: " if packed
               else "no .safetensors beside its config.json (pickles are not opened); valid: ")
            + "weights in floating point as .safetensors, or a .gguf file"
        )  # fmt: skip
    return Store(checkpoint, family, SafetensorsFiles(found.text, checkpoint.files))
