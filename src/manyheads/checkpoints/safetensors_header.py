"""The header of a .safetensors file: names, types, shapes and sizes of its tensors, without reading one of them.

A file is 8 bytes (little-endian length n), n bytes of JSON that start with "{", then the tensors' bytes without gaps:

    {"__metadata__": {"format": "pt"}, "name": {"dtype": "BF16", "shape": [m, n], "data_offsets": [begin, end]}, ...}

Everything that the format promises is checked, the size of the file included, so that a truncated download is found
here and not when its last layer is loaded. The header is read entry by entry: it takes the memory of its bytes and of
the tensors that it describes, whatever else it holds.

Source: the format's description and reference reader, huggingface/safetensors 0.8 (22 types, header of at most
100,000,000 bytes).
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyheads.checkpoints.files import appearance, open_regular, read_small
from manyheads.checkpoints.json_config import parse_json_object
from manyheads.checkpoints.json_stream import JsonStream
from manyheads.checkpoints.tensors import LARGEST_TENSOR_ELEMENTS, MAX_TENSORS, TensorInfo, count_elements
from manyheads.errors import CheckpointError
from manyheads.quoting import shown, shown_path

__all__ = [
    "DTYPE_BITS",
    "INDEX_NAME",
    "MAX_HEADER_BYTES",
    "SINGLE_NAME",
    "Header",
    "TensorInfo",
    "read_header",
    "read_sharded",
    "tensors_of",
]

MAX_HEADER_BYTES = 100_000_000
SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_MAX_INDEX_BYTES = 64 * 2**20
_MAX_ENTRY_BYTES = 4096  # a thousand axes
_MAX_METADATA = 4096  # words, and bytes of one that nobody asks for
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}

# Bits of one element, by the format's word for the type.
DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What the headers of a model's safetensors files say together.

    tensors   by name, in the order of the files
    metadata  the ``__metadata__`` of the first file: {"format": "pt"} as a rule
    path      the file, or the folder, that was read
    files     names of the files whose headers were read
    """

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    path: str
    files: tuple[str, ...]


def read_header(path: str | os.PathLike[str], *, whole: Collection[str] = ()) -> Header:
    """Read and check the header of the one .safetensors file `path`: 8 bytes and the header, nothing of the tensors.

    Of ``__metadata__``, words of more than 4,096 bytes are passed over, except those whose keys are in `whole`.

    Raises CheckpointError, one line that names the file and the tensor, when the file is missing or unreadable, is not
    safetensors, is truncated (with the bytes that are missing), has more than 262,144 tensors, or contradicts itself.
    """
    where = shown_path(path)
    file, size = open_regular(path, wanted="a .safetensors file")
    with file:
        try:
            raw = _read_raw_header(file.read(8), size, file.read, where)
        except OSError as error:
            raise CheckpointError(f"{where}: cannot be read ({error.strerror or error})") from None
    _check_count(raw.count(b'"data_offsets"'), where)
    metadata: dict[str, str] = {}
    entries = _entries(JsonStream(raw, f"{where}: safetensors header"), metadata, where, whole)
    tensors = _checked(entries, where, data_bytes=size - 8 - len(raw))
    return Header(tensors, metadata, os.fspath(path), (os.path.basename(path),))


def _read_raw_header(start: bytes, size: int, read: Any, where: str) -> bytes:
    if len(start) < 8:
        raise CheckpointError(f"{where}: {size} bytes; a .safetensors file has at least 8, for the header's length")
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER_BYTES or length > size - 8:
        looks = appearance(start + read(64))
        limit = f"the format's limit is {MAX_HEADER_BYTES}" if length > MAX_HEADER_BYTES else "it is truncated"
        raise CheckpointError(
            f"{where}: says its header has {length} bytes, the file has {size}: {limit}, or it is not safetensors"
            f" (it looks like {looks})"
        )
    raw: bytes = read(length)
    if len(raw) < length:
        raise CheckpointError(f"{where}: became shorter while it was read ({len(raw)} of {length} header bytes)")
    if raw[:1] != b"{":
        raise CheckpointError(f"{where}: the safetensors header begins with {shown(raw[:1])}, not with '{{'")
    return raw


def _entries(
    stream: JsonStream, metadata: dict[str, str], where: str, whole: Collection[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The entry of each tensor, in the order of the header; what stands in ``__metadata__`` is put into `metadata`."""
    for name in stream.members():
        if name == "__metadata__":
            _read_metadata(stream, metadata, whole)
        else:
            yield name, _entry(stream, name, where)
    stream.end()


def _read_metadata(stream: JsonStream, metadata: dict[str, str], whole: Collection[str]) -> None:
    problem = "__metadata__ must map words to words"
    for words, key in enumerate(stream.members(problem)):
        if words == _MAX_METADATA:
            stream.refuse(f"__metadata__ maps more than {_MAX_METADATA} words")
        word = stream.text(problem, most=None if key in whole else _MAX_METADATA)
        if word is not None:
            metadata[key] = word


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once)


def _entry(stream: JsonStream, name: str, where: str) -> Mapping[str, Any]:
    """The entry of a tensor. Python's own decoder takes what all writers write; the strict one tells what else there is."""
    raw = stream.flat_object(_MAX_ENTRY_BYTES)
    if raw is None:
        most = f"at most {_MAX_ENTRY_BYTES} bytes"
        stream.refuse(f"tensor {shown(name)}: must be an object with dtype, shape, data_offsets, of {most}")
    try:
        entry: dict[str, Any] = _DECODER.decode(raw.decode())
        if entry.keys() == _ENTRY_KEYS and b"\\" not in raw:
            return entry
    except (ValueError, RecursionError):
        pass
    return parse_json_object(raw, where=f"{where}: tensor {shown(name)}")


def tensors_of(entries: Mapping[str, Any], *, where: str, data_bytes: int | None) -> dict[str, TensorInfo]:
    """Check the entries of a header against each other and against `data_bytes`, the bytes that follow it in the file.

    data_bytes is None where the size of the file is not known (a header fetched alone).

    Raises CheckpointError that begins with `where`.
    """
    return _checked(entries.items(), where, data_bytes)


def _checked(entries: Iterable[tuple[str, Any]], where: str, data_bytes: int | None) -> dict[str, TensorInfo]:
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, TensorInfo] = {}
    for name, entry in entries:
        if name in tensors:
            raise CheckpointError(f"{where}: tensor {shown(name)} appears twice; it must be given once")
        _check_count(len(tensors) + 1, where)
        try:
            tensor, (begin, end) = _tensor_of(name, entry), _offsets_of(entry)
        except CheckpointError as error:
            raise CheckpointError(f"{where}: tensor {shown(name)}: {error}") from None
        if end - begin != tensor.nbytes:
            raise CheckpointError(
                f"{where}: tensor {shown(name)}: {tensor.dtype} {shown(list(tensor.shape))} takes {tensor.nbytes} bytes,"
                f" its data_offsets [{begin}, {end}] hold {end - begin}"
            )
        tensors[name] = tensor
        spans.append((begin, end, name))
    _check_layout(spans, where, data_bytes)
    return tensors


def _check_count(tensors: int, where: str) -> None:
    if tensors > MAX_TENSORS:
        raise CheckpointError(f"{where}: {tensors} tensors or more; at most {MAX_TENSORS} are read of one model")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_TENSOR_ELEMENTS


def _tensor_of(name: str, entry: Mapping[str, Any]) -> TensorInfo:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if not isinstance(dtype, str) or bits is None:
        raise CheckpointError(f"dtype {shown(dtype)} is not one of {', '.join(DTYPE_BITS)}")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise CheckpointError(f"shape must be a list of integers from 0 to 2**63 - 1, found {shown(shape)}")
    elements = count_elements(tuple(shape))
    if elements is None:
        raise CheckpointError(f"shape {shown(shape)} has more elements than 64 bits can count")
    if elements * bits % 8:
        raise CheckpointError(f"{elements} elements of {bits} bits ({dtype}) do not fill whole bytes")
    return TensorInfo(name, dtype, tuple(shape), elements * bits // 8)


def _offsets_of(entry: Mapping[str, Any]) -> tuple[int, int]:
    offsets = entry.get("data_offsets")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise CheckpointError(f"data_offsets must be [begin, end] in bytes, found {shown(offsets)}")
    begin, end = offsets
    if begin > end:
        raise CheckpointError(f"data_offsets [{begin}, {end}] end before they begin")
    return begin, end


def _check_layout(spans: list[tuple[int, int, str]], where: str, data_bytes: int | None) -> None:
    """The tensors must cover the bytes after the header once each: no overlap, no hole, no rest."""
    position, before = 0, "the header"
    for begin, end, name in sorted(spans):
        if begin != position:
            what = "overlaps" if begin < position else f"leaves a hole of {begin - position} bytes after"
            raise CheckpointError(
                f"{where}: tensor {shown(name)} begins at byte {begin} and {what} {shown(before)}, which ends at"
                f" {position}; tensors must follow each other without gaps"
            )
        position, before = end, name
    if data_bytes is None or position == data_bytes:
        return
    if position > data_bytes:
        raise CheckpointError(
            f"{where}: truncated: the header describes {position} bytes of tensors, the file holds {data_bytes}:"
            f" {position - data_bytes} bytes are missing"
        )
    raise CheckpointError(f"{where}: {data_bytes - position} bytes follow the last tensor; there must be none")


def read_sharded(folder: str | os.PathLike[str], *, names: Collection[str] | None = None) -> Header:
    """Read the headers of the model in `folder`, as transformers would choose the files.

    In this order: ``model.safetensors``; ``model.safetensors.index.json`` and every shard that it names; the only
    ``*.safetensors`` there is. `names`: what is in the folder, where that is known. The index's ``total_size`` is not used: published ones are often wrong.

    Raises CheckpointError when there is none or no telling which, when a shard is missing or named by a path that
    leaves the folder, when a tensor is in two shards or not in the one that the index says, and as `read_header` does.
    """
    where, root = shown_path(folder), Path(folder)
    try:
        inside = os.listdir(root) if names is None else names
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a possible path"
        raise CheckpointError(f"{where}: cannot be listed ({reason}); expected a folder with .safetensors") from None
    found = sorted(name for name in inside if name.endswith(".safetensors"))
    if SINGLE_NAME in found:
        return read_header(root / SINGLE_NAME)
    if os.path.lexists(root / INDEX_NAME):
        return _read_shards(root)
    if len(found) == 1:
        return read_header(root / found[0])
    listed = ", ".join(map(shown, found[:5])) + (", ..." if len(found) > 5 else "")
    raise CheckpointError(
        f"{where}: holds {f'{len(found)} .safetensors files ({listed})' if found else 'no .safetensors file'};"
        f" expected {SINGLE_NAME}, {INDEX_NAME} with its shards, or one .safetensors file"
    )


def _read_shards(root: Path) -> Header:
    index_path = root / INDEX_NAME
    where = shown_path(index_path)
    raw = read_small(index_path, wanted="an index of shards", most=_MAX_INDEX_BYTES)
    shards = _shard_names((shard for _, shard in _weight_map(raw, where)), where)
    if not shards:
        raise CheckpointError(f"{where}: weight_map must map tensor names to shard files, found none")
    missing = [shard for shard in shards if not os.path.exists(root / shard)]
    if missing:
        names = ", ".join(map(shown, missing[:3])) + (", ..." if len(missing) > 3 else "")
        raise CheckpointError(f"{where}: {len(missing)} of {len(shards)} shards are missing from the folder: {names}")
    tensors: dict[str, TensorInfo] = {}
    home: dict[str, str] = {}
    metadata: Mapping[str, str] = {}
    for number, shard in enumerate(shards):
        header = read_header(root / shard)
        metadata = metadata if number else header.metadata
        _check_count(len(tensors) + len(header.tensors), where)
        for name, tensor in header.tensors.items():
            if name in tensors:
                both = f"{shown(home[name])} and {shown(shard)}"
                raise CheckpointError(f"{where}: tensor {shown(name)} is in two shards, {both}; it must be in one")
            tensors[name], home[name] = tensor, shard
    for name, shard in _weight_map(raw, where):
        if home.get(name) != shard:
            raise CheckpointError(f"{where}: tensor {shown(name)} is not in {shown(shard)}, where the index places it")
    return Header(tensors, metadata, os.fspath(root), shards)


def _weight_map(raw: bytes, where: str) -> Iterator[tuple[str, str]]:
    """The shard of each tensor, as the index says; nothing is kept, so that it can be gone through again."""
    stream = JsonStream(raw, where)
    for key in stream.members():
        if key != "weight_map":
            stream.skip()
            continue
        for count, name in enumerate(stream.members("weight_map must map tensor names to shard files"), 1):
            _check_count(count, where)
            yield name, str(stream.text(f"shard of {shown(name)} must be the name of a .safetensors file beside it"))
    stream.end()


def _shard_names(values: Iterable[str], where: str) -> tuple[str, ...]:
    """The distinct shard files, each a plain name in the index's own folder."""
    shards: dict[str, None] = {}
    for shard in values:
        if shard in shards:
            continue
        plain = shard.endswith(".safetensors") and not set(shard) & set("/\\\0:")
        if not plain:
            raise CheckpointError(f"{where}: shard {shown(shard)} must be the name of a .safetensors file beside it")
        shards[shard] = None
    return tuple(sorted(shards))
