"""A model in one GGUF file, or split over several as llama.cpp's gguf-split leaves it: NAME-00001-of-00003.gguf, ...

The metadata of the model stands in the first part; every part has its own tensors, and says ``split.count``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from manyheads.checkpoints.gguf_header import GGUFHeader, read_gguf
from manyheads.checkpoints.tensors import TensorInfo
from manyheads.errors import CheckpointError
from manyheads.quoting import shown, shown_path

__all__ = ["first_part", "read_gguf_model"]

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def first_part(names: Collection[str]) -> str | None:
    """The one model among the GGUF files `names` of a folder: the lone file, or the first part of the lone split."""
    split = [_PART_NAME.fullmatch(name) for name in names]
    firsts = [name for name, part in zip(names, split, strict=True) if part is None or int(part["number"]) == 1]
    return firsts[0] if len(firsts) == 1 else None


def read_gguf_model(path: str | os.PathLike[str], *, whole: Collection[str] = ()) -> GGUFHeader:
    """`read_gguf`, and where `path` is one part of a split model, any one, the tensors of all its parts.

    Raises CheckpointError when a part is missing, belongs to another model or repeats a tensor, and as `read_gguf`.
    """
    asked = read_gguf(path, whole=whole)
    count = asked.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return asked
    where = shown_path(path)
    part = _PART_NAME.fullmatch(os.path.basename(os.fspath(path)))
    if part is None or int(part["count"]) != count:
        raise CheckpointError(
            f"{where}: is one of {count} parts of a model; expected it to be called NAME-00001-of-{count:05d}.gguf"
            " or so, beside the others"
        )
    folder = os.path.dirname(os.fspath(path))
    paths = [os.path.join(folder, f"{part['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [os.path.basename(each) for each in paths if not os.path.exists(each)]
    if missing:
        names = ", ".join(map(shown, missing[:3])) + (", ..." if len(missing) > 3 else "")
        raise CheckpointError(f"{where}: {len(missing)} of {count} parts are missing beside it: {names}")
    return _join([read_gguf(each, whole=whole) for each in paths], count)


def _join(parts: list[GGUFHeader], count: int) -> GGUFHeader:
    tensors: dict[str, TensorInfo] = {}
    for number, part in enumerate(parts):
        if part.metadata.get("split.count") != count or part.metadata.get("split.no") != number:
            found = f"split.no {shown(part.metadata.get('split.no'))}, split.count {shown(part.metadata.get('split.count'))}"
            raise CheckpointError(f"{shown_path(part.path)}: says {found}; expected {number} and {count}")
        for tensor in part.tensors:
            if tensor.name in tensors:
                raise CheckpointError(f"{shown_path(part.path)}: tensor {shown(tensor.name)} is in an earlier part too")
            tensors[tensor.name] = tensor
    first = parts[0]
    return GGUFHeader(first.version, first.metadata, tuple(tensors.values()), first.alignment, first.path)
