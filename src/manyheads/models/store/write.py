"""A model's weights as a folder that transformers loads: written beside its place, then moved there in one step.

Tensors are asked for layer by layer and let go with their shard, so that no more than a shard is held. A head that is
tied is left out, as Hugging Face does (case O66); the index's total is the sum of what the shards hold (case O65).
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyheads.checkpoints.config import ModelConfig, read_config
from manyheads.checkpoints.families import named
from manyheads.checkpoints.layout import expected_tensors
from manyheads.checkpoints.reading import open_model
from manyheads.checkpoints.safetensors_header import INDEX_NAME, SINGLE_NAME
from manyheads.errors import CheckpointError
from manyheads.models.store.patterns import put_together
from manyheads.models.store.read import check_names
from manyheads.quoting import one_line, shown, shown_path
from manyheads.report.files import folder_appearing
from manyheads.spec.inventory import weights as inventory
from manyheads.spec.stack import StackSpec

__all__ = ["Written", "write_store"]

_SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True)
class Written:
    """What was written: the folder, its weight files, and what they hold together."""

    folder: Path
    files: tuple[str, ...]
    tensor_bytes: int
    parameters: int


def write_store(
    folder: str | os.PathLike[str],
    weights: Mapping[str, Tensor],
    *,
    config: Mapping[str, Any],
    shard_bytes: int = _SHARD_BYTES,
    layout: Mapping[str, Sequence[int]] | None = None,
    others: Mapping[str, Tensor] | None = None,
    beside: Mapping[str, bytes] | None = None,
    stack: StackSpec | None = None,
) -> Written:
    """Write the model that `config` describes, with `weights` by canonical name, as safetensors under its family's names.

    folder       must not exist, or be empty; it appears complete or not at all
    weights      all weights of the model, each asked for once, in the order of its layers: a `Store`, a dict, or any
                 mapping that makes them on demand
    config       becomes config.json as it is
    shard_bytes  a file holds no more than that, unless one tensor alone is larger
    layout       instead of that, which file holds each part of a weight (`Store.layout`): as many files as there
    others       tensors that are no weights of the model (heads of tasks), by the names that they keep
    beside       other files to put there (a tokenizer's), by name
    stack        what the files shall hold, where they leave out a part of what `config` describes (a head, a pooler)

    Raises CheckpointError, one line, and leaves nothing behind: for a folder that is in use, weights that are missing, of
    another shape or not of the model, a head beside a tied configuration that differs from the embeddings, and a disk
    that is full.
    """
    target = Path(os.path.abspath(folder))
    where = shown_path(target)
    if "quantization_config" in config:
        raise CheckpointError(f"{where}: its configuration says that the weights are quantised; take that key out")
    if "rope.dimension_count" in config:
        raise CheckpointError(
            f"{where}: a part of each head is rotated, as GGUF says and a config.json of its family cannot"
        )
    model = read_config(config, source=where)
    if stack is not None:
        model = replace(model, stack=stack)
    weights = _untied(weights, model, where)
    check_names(model.stack, weights, source=where)
    clash = set(beside or ()) & {"config.json", SINGLE_NAME, INDEX_NAME}
    unsafe = [name for name in beside or () if os.path.basename(name) != name or name in clash]
    if unsafe:
        raise CheckpointError(
            f"{where}: {shown(unsafe[0])} cannot be put beside the weights; expected another plain name"
        )
    _check_free(target, where)
    with folder_appearing(target) as part:
        shards = _Shards(part, shard_bytes)
        for name, tensor, file in _stored(model, weights, others or {}, layout or {}):
            shards.add(name, tensor, file)
        files = shards.finish()
        text = json.dumps(dict(config), indent=2, sort_keys=True) + "\n"
        (part / "config.json").write_text(text, encoding="utf-8")
        for name, data in (beside or {}).items():
            (part / name).write_bytes(data)
        open_model(part)  # read as anyone will: its headers must be what its configuration describes
    return Written(target, files, shards.total_bytes, shards.parameters)


def _untied(weights: Mapping[str, Tensor], model: ModelConfig, where: str) -> Mapping[str, Tensor]:
    """Without a head that the configuration ties, which must be the embeddings."""
    if model.stack.head != "tied" or "head" not in set(weights):  # a mapping's own "in" would make the tensor
        return weights
    if not torch.equal(weights["head"], weights["tokens"]):
        raise CheckpointError(
            f"{where}: its configuration ties the head to the embeddings, but the two given differ; set "
            "tie_word_embeddings to false to keep both"
        )
    return _Without(weights, "head")


class _Without(Mapping[str, Tensor]):
    """A mapping without one of its names."""

    def __init__(self, whole: Mapping[str, Tensor], name: str) -> None:
        self._whole, self._name = whole, name

    def __getitem__(self, name: str) -> Tensor:
        if name == self._name:
            raise KeyError(name)
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._whole if name != self._name)

    def __len__(self) -> int:
        return len(self._whole) - 1


def _stored(
    model: ModelConfig, weights: Mapping[str, Tensor], others: Mapping[str, Tensor], layout: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, Tensor, int]]:  # fmt: skip
    """Names and tensors as the files hold them, and in which file, -1 where `layout` is empty: file by file in the order of
    the layers, each weight asked for once in a file."""
    place = {weight.name: number for number, weight in enumerate(inventory(model.stack))}

    def file_of(name: str, index: int) -> int:
        files = layout.get(name) or ((0,) if layout else (-1,))
        return files[min(max(index, 0), len(files) - 1)]

    items = expected_tensors(named(model.family), model.stack)
    rows = [
        (file_of(item.parts[0].name, item.index), min(place[part.name] for part in item.parts), item.index, name)
        for name, item in items.items()
    ] + [(file_of(name, -1), len(place), 0, name) for name in others]  # fmt: skip
    held: dict[str, Tensor] = {}  # of experts, whose one weight is many stored tensors
    for file, at, _, name in sorted(rows):
        if at == len(place):
            yield name, others[name], file
            continue
        item = items[name]
        held = {part.name: held[part.name] if part.name in held else weights[part.name] for part in item.parts}
        yield name, put_together(item, held), file


class _Shards:
    """Files of safetensors, each written when it is full, and named when all are."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self.total_bytes = self.parameters = 0
        self._folder, self._limit, self._file = folder, shard_bytes, -1
        self._now: dict[str, Tensor] = {}
        self._now_bytes = 0
        self._shards: list[tuple[str, ...]] = []

    def add(self, name: str, tensor: Tensor, file: int = -1) -> None:
        full = self._now_bytes + tensor.nbytes > self._limit if file < 0 else file != self._file
        self._file = file
        if self._now and full:
            self._write()
        if name in self._now or any(name in shard for shard in self._shards):
            raise CheckpointError(f"two tensors would be stored as {shown(name)}")
        self._now[name] = _alone(tensor)
        self._now_bytes += tensor.nbytes
        self.total_bytes += tensor.nbytes
        self.parameters += tensor.numel()

    def finish(self) -> tuple[str, ...]:
        """Write what is left, and the index where there are several files; their names."""
        self._write()
        count = len(self._shards)
        if count == 1:
            os.replace(self._part(1), self._folder / SINGLE_NAME)
            return (SINGLE_NAME,)
        files = tuple(f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1))
        for number, file in enumerate(files, 1):
            os.replace(self._part(number), self._folder / file)
        homes = {name: file for file, shard in zip(files, self._shards, strict=True) for name in shard}
        index = {
            "metadata": {"total_parameters": self.parameters, "total_size": self.total_bytes},
            "weight_map": dict(sorted(homes.items())),
        }
        (self._folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        return files

    def _part(self, number: int) -> Path:
        return self._folder / f"shard-{number}.part"

    def _write(self) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        self._shards.append(tuple(self._now))
        path = self._part(len(self._shards))
        path.touch()
        mode = stat.S_IMODE(
            path.stat().st_mode
        )  # of any new file here; the library makes one that only its owner reads
        try:
            save_file(self._now, path, metadata={"format": "pt"})
        except SafetensorError as error:
            raise CheckpointError(
                f"{shown_path(self._folder)}: cannot be written ({one_line(str(error), 200)})"
            ) from None
        path.chmod(mode)
        self._now, self._now_bytes = {}, 0


def _alone(tensor: Tensor) -> Tensor:
    """On the CPU, contiguous, and sharing no memory: safetensors refuses two names for one piece of it."""
    own = tensor.detach().to("cpu").contiguous()
    return own.clone() if own.data_ptr() == tensor.data_ptr() else own


def _check_free(target: Path, where: str) -> None:
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise CheckpointError(f"{where}: is there already; expected a folder that does not exist yet, or an empty one")
