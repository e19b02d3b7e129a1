"""The door of this room: whatever a user names, read as a model."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from manyheads.checkpoints.config import ModelConfig, read_config
from manyheads.checkpoints.locate import Located, locate
from manyheads.errors import CheckpointError
from manyheads.quoting import few, shown_name, shown_path
from manyheads.spec.stack import StackSpec

if TYPE_CHECKING:
    from manyheads.checkpoints.safetensors_header import Header

__all__ = ["Checkpoint", "Named", "located", "open_model", "read"]

_MOST_KEYS = 20  # that a note names
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class Checkpoint:
    """A model that was named and read.

    stack              what it is
    name               short, for a table
    source             the path, hub id, census name or words it was read from
    family             name of the family that read it, "" for a spec in words
    weight_dtype       how the weights are stored, "" where nothing says
    parameters_stored  parameters that the files' headers hold, equal to the derived count; None without headers
    stored_bytes       bytes of tensors in the files; None without headers
    config             the configuration, None where there is none
    notes              what was assumed, left out or found, a sentence each
    unknown_keys       keys of the configuration that nothing understood
    located            where it was found: nobody looks for it again
    files              the paths of its .safetensors files
    revision, assume   as they were asked for; commit: of a hub id, the one that its configuration is of
    """

    stack: StackSpec
    name: str
    source: str
    family: str
    weight_dtype: str
    parameters_stored: int | None = None
    stored_bytes: int | None = None
    config: Mapping[str, Any] | None = field(default=None, compare=False)
    notes: tuple[str, ...] = ()
    unknown_keys: tuple[str, ...] = ()
    located: Located = field(default=Located("spec", ""), compare=False)
    files: tuple[str, ...] = field(default=(), compare=False)
    revision: str | None = field(default=None, compare=False)
    assume: str = field(default="", compare=False)
    commit: str = field(default="", compare=False)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, and one on the keys that nothing understood."""
        unknown = few(self.unknown_keys, _MOST_KEYS)
        return (*self.notes, f"fields of the config that played no part: {unknown}") if unknown else self.notes


Named = str | os.PathLike[str] | Located
"""What names a model: a text or path, or where it was found."""


def read(model: Named, *, revision: str | None = None, assume: str = "") -> StackSpec:
    """What `model` is: a folder with config.json, a config.json, a .safetensors or .gguf file, a spec in words, a name
    of the census, a hub id (with `revision`), or "demo".

    assume  "full" prices attention that is not understood as plain full attention

    Raises CheckpointError, one line, for what cannot be read or contradicts itself.
    """
    return open_model(model, revision=revision, assume=assume).stack


def open_model(model: Named | Checkpoint, *, revision: str | None = None, assume: str = "") -> Checkpoint:
    """Read `model` as `read` does, with its name, family, stored type, the count from its files, and notes.

    A checkpoint, which was read before, is given back as it is.
    """
    if isinstance(model, Checkpoint):
        return model
    found = located(model)
    if revision is not None and found.kind != "hub":
        raise CheckpointError(
            f"a revision ({shown_name(revision)}) belongs to a hub id; {shown_path(found.text)} is a {found.kind}"
        )
    return replace(_read(found, revision, assume), located=found, revision=revision, assume=assume)


def located(model: Named) -> Located:
    """Where `model` is: `locate`, for all that names one."""
    if isinstance(model, Located):
        return model
    if not isinstance(model, str | os.PathLike) or not isinstance(os.fspath(model), str):
        raise CheckpointError(f"a model is named by a string or a path, found {type(model).__name__}")
    return locate(os.fspath(model))


def _read(found: Located, revision: str | None, assume: str) -> Checkpoint:
    if found.kind == "spec":
        return _from_words(found.text)
    if found.kind == "census":
        return _from_census(found.text, assume)
    if found.kind == "hub":
        return _from_hub(found.text, revision, assume)
    if found.kind == "gguf":
        return _from_gguf(found.text, assume)
    return _from_disk(found, assume)


def _from_words(text: str) -> Checkpoint:
    from manyheads.spec.text import parse_stack

    return Checkpoint(parse_stack(text), text if len(text) <= 48 else text[:45] + "...", text, "", "")


def _from_census(name: str, assume: str) -> Checkpoint:
    from manyheads.facts.census import find

    entry = find(name)
    if entry is None:
        raise CheckpointError(f"{name}: the census has no such model")
    model = read_config(entry.config, source=entry.name, assume=assume)
    return _checkpoint(model, entry.name, entry.name, entry.config)


def _from_hub(repo_id: str, revision: str | None, assume: str) -> Checkpoint:
    from manyheads.checkpoints.hub import fetch_config
    from manyheads.checkpoints.json_config import load_json_object

    path = fetch_config(repo_id, revision)
    config = load_json_object(path)
    model = read_config(config, source=repo_id, assume=assume)
    commit = path.parent.name  # the cache has a folder for each
    made = _checkpoint(model, repo_id.rpartition("/")[2], repo_id, config)
    return replace(made, commit=commit if _COMMIT.fullmatch(commit) else "")


def _from_gguf(path: str, assume: str) -> Checkpoint:
    from manyheads.checkpoints.gguf_model import open_gguf

    model, found, config = open_gguf(path, assume=assume)
    return Checkpoint(
        found.stack, os.path.splitext(os.path.basename(path))[0], path, model.family, found.weight_dtype, found.parameters,
        found.stored_bytes, config=config, notes=(*model.notes, *found.notes), unknown_keys=model.unknown_keys,
    )  # fmt: skip


def _from_disk(found: Located, assume: str) -> Checkpoint:
    """A folder, a lone configuration, or a weight file with its configuration beside it."""
    from manyheads.checkpoints.json_config import load_json_object

    path = found.text if found.kind == "config" else os.path.join(found.folder, "config.json")
    if not os.path.lexists(path):
        raise CheckpointError(
            f"{shown_path(found.text)}: holds weights but no config.json stands beside them; tensor names and shapes "
            "alone do not say how many heads there are: put the model's config.json there"
        )
    config = load_json_object(path)
    header = None if found.kind == "config" else _header(found)
    if found.kind == "config" and not ({"model_type", "architectures"} & set(config)):
        _check_is_config(config, path)
    model = read_config(config, source=shown_path(path), assume=assume)
    name = os.path.basename(os.path.abspath(found.text if found.kind != "config" else found.folder))
    if found.kind == "config" and os.path.basename(path) != "config.json":
        name = os.path.splitext(os.path.basename(path))[0]
    files = tuple(os.path.join(found.folder, file) for file in header.files) if header else ()
    return replace(_checkpoint(model, name, found.text, config, header), files=files)


def _check_is_config(config: Mapping[str, Any], path: str) -> None:
    if "weight_map" in config:
        raise CheckpointError(
            f"{shown_path(path)}: an index of weight files, not a configuration; name its folder or config.json"
        )


def _header(found: Located) -> Header | None:
    from manyheads.checkpoints.safetensors_header import read_header, read_sharded

    if found.kind == "safetensors":
        return read_header(found.text)
    if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in found.names):
        return read_sharded(found.text, names=found.names)
    return None


def _checkpoint(
    model: ModelConfig, name: str, source: str, config: Mapping[str, Any], header: Header | None = None
) -> Checkpoint:
    """The checkpoint of a configuration, checked against the header where there is one."""
    made = Checkpoint(
        model.stack, name, source, model.family, model.weight_dtype, config=config, notes=model.notes,
        unknown_keys=model.unknown_keys,
    )  # fmt: skip
    if header is None:
        return made
    from manyheads.checkpoints.config import text_part
    from manyheads.checkpoints.families import named
    from manyheads.checkpoints.verify import check_header

    inner, _ = text_part(config)
    where, nested = shown_path(header.path), inner is not config
    both = {**inner, "quantization_config": inner.get("quantization_config", config.get("quantization_config"))}
    found = check_header(header.tensors, named(model.family), model.stack, source=where, config=both, nested=nested)
    if found is None:
        note = "the weights are packed by a quantisation: names and shapes in their header are not checked"
        return replace(made, stored_bytes=sum(t.nbytes for t in header.tensors.values()), notes=(*made.notes, note))
    return replace(
        made,
        stack=found.stack,
        weight_dtype=found.weight_dtype or made.weight_dtype,
        parameters_stored=found.parameters,
        stored_bytes=found.stored_bytes,
        notes=(*made.notes, *found.notes),
    )
