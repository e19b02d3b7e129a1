"""The header of a GGUF file: its metadata and its tensors' names, types, shapes and sizes, without reading one of them.

    "GGUF", version u32, tensors u64, pairs u64
    pairs x    key string, type u32, value                       string: length u64, UTF-8
    tensors x  name string, n u32, n x size u64, type u32, offset u64    array: type u32, length u64, values
    padding to the alignment, then the tensors, each at data_start + offset

Sizes are stored innermost axis first; `TensorInfo.shape` is the reverse, as torch prints it. The file is mapped, so a
header of 2 MB in front of 100 GB costs 2 MB of reading, and every length is held against what is left of the file
before anything is made from it.

Source: ggml's docs/gguf.md; limits (4 axes, alignment a power of two) as its own reader sets them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

from manyheads.checkpoints.files import appearance, open_regular
from manyheads.checkpoints.gguf_values import ArrayInfo, Cursor, TextInfo, read_value
from manyheads.checkpoints.tensors import MAX_TENSORS, TensorInfo, count_elements
from manyheads.errors import CheckpointError
from manyheads.facts.ggml_types import GGML_BLOCKS, GGML_CODES
from manyheads.quoting import shown, shown_path

__all__ = ["ArrayInfo", "GGUFHeader", "TensorInfo", "TextInfo", "read_gguf"]

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_MAX_AXES = 4
_MOST_PAIRS = 2**16  # published files have some 50
_LEAST_PAIR_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 4 + 8


@dataclass(frozen=True)
class GGUFHeader:
    """What the header of a GGUF file says.

    version    2 or 3
    metadata   by key: int, float, bool, str; a tuple for an array; TextInfo and ArrayInfo for what was stepped over
    tensors    in the order of the file
    alignment  bytes; tensors begin at its multiples
    path       the file that was read
    starts     the byte of the file at which each tensor begins, in the same order; none for a model in several parts
    """

    version: int
    metadata: Mapping[str, object]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    path: str
    starts: tuple[int, ...] = ()


def read_gguf(path: str | os.PathLike[str], *, whole: Collection[str] = ()) -> GGUFHeader:
    """Read and check the header of the GGUF file `path`: versions 2 and 3, either byte order.

    Arrays of more than 1,024 values (vocabularies, merges) are stepped over, and only their type and length kept,
    except those whose keys are in `whole`; so are strings of more than 4,096 bytes.

    Raises CheckpointError, one line that names the file and the key or tensor, when the file is missing or unreadable,
    is not GGUF, is truncated (with the bytes that are missing), or contradicts itself.
    """
    where = shown_path(path)
    file, size = open_regular(path, wanted="a .gguf file")
    with file:
        start = file.read(64)
        if start[:4] != _MAGIC:
            raise CheckpointError(f"{where}: is not GGUF (no GGUF at its start): it looks like {appearance(start)}")
        if size < 24:
            raise CheckpointError(f"{where}: {size} bytes; a GGUF file has at least 24, for version and counts")
        try:
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{where}: cannot be mapped ({error})") from None
        with mapped:
            return _read(mapped, size, where, os.fspath(path), whole)


def _read(data: mmap.mmap, size: int, where: str, path: str, whole: Collection[str]) -> GGUFHeader:
    version, order = _version_of(data[4:8], where)
    cursor = Cursor(data, size, order, where)
    cursor.at = 8
    tensor_count, pair_count = cursor.u64("the number of tensors"), cursor.u64("the number of metadata pairs")
    cursor.expect(pair_count, _LEAST_PAIR_BYTES, "metadata pairs")
    cursor.expect(tensor_count, _LEAST_TENSOR_BYTES, "tensors")
    for count, most, what in ((pair_count, _MOST_PAIRS, "metadata pairs"), (tensor_count, MAX_TENSORS, "tensors")):
        if count > most:
            raise CheckpointError(f"{where}: {count} {what} in a file of {size} bytes; at most {most} are read")
    metadata = _read_pairs(cursor, pair_count, whole)
    alignment = _alignment_of(metadata, where)
    found = [_read_tensor(cursor, number) for number in range(tensor_count)]
    data_start = -(-cursor.at // alignment) * alignment
    _check_layout(found, data_start, alignment, size, where)
    starts = tuple(data_start + offset for _, offset in found)
    return GGUFHeader(version, metadata, tuple(tensor for tensor, _ in found), alignment, path, starts)


def _version_of(raw: bytes, where: str) -> tuple[int, str]:
    """The version and struct's mark for the byte order in which it makes sense: version 3 alone may be big-endian."""
    little, big = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
    if little in (2, 3):
        return little, "<"
    if big == 3:
        return big, ">"
    raise CheckpointError(f"{where}: GGUF version {min(little, big)}; versions 2 and 3 are read")


def _read_pairs(cursor: Cursor, count: int, whole: Collection[str]) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for number in range(count):
        key = cursor.name(f"the key of metadata pair {number}")
        if key in metadata:
            raise CheckpointError(f"{cursor.where}: the metadata key {shown(key)} appears twice; it must be given once")
        metadata[key] = read_value(cursor, key, whole=key in whole)
    return metadata


def _alignment_of(metadata: Mapping[str, object], where: str) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    is_power = isinstance(alignment, int) and not isinstance(alignment, bool) and alignment > 0
    if not is_power or not isinstance(alignment, int) or alignment & (alignment - 1):
        raise CheckpointError(f"{where}: general.alignment must be a power of two in bytes, found {shown(alignment)}")
    return alignment


def _read_tensor(cursor: Cursor, number: int) -> tuple[TensorInfo, int]:
    """One entry of the table of tensors, and its offset from the start of the data."""
    name = cursor.name(f"the name of tensor {number}")
    what = f"tensor {shown(name)}"
    axes = cursor.u32(what)
    if axes > _MAX_AXES:
        raise CheckpointError(f"{cursor.where}: {what}: {axes} axes; GGUF tensors have at most {_MAX_AXES}")
    sizes = tuple(cursor.u64(what) for _ in range(axes))
    code, offset = cursor.u32(what), cursor.u64(what)
    try:
        return _tensor(name, sizes, code), offset
    except CheckpointError as error:
        raise CheckpointError(f"{cursor.where}: {what}: {error}") from None


def _tensor(name: str, sizes: tuple[int, ...], code: int) -> TensorInfo:
    dtype = GGML_CODES.get(code)
    if dtype is None:
        known = ", ".join(f"{known_code} {known_name}" for known_code, known_name in GGML_CODES.items())
        raise CheckpointError(f"ggml type {code} is not one of {known}")
    elements = count_elements(sizes)
    if elements is None or 0 in sizes:
        raise CheckpointError(f"shape {list(sizes)}; sizes must be 1 or more, and their product fit 64 bits")
    block_elements, block_bytes = GGML_BLOCKS[dtype]
    row = sizes[0] if sizes else 1
    if row % block_elements:
        raise CheckpointError(f"rows of {row} do not fill whole blocks of {dtype} ({block_elements} elements)")
    return TensorInfo(name, dtype, sizes[::-1], elements // block_elements * block_bytes)


def _check_layout(found: list[tuple[TensorInfo, int]], data_start: int, alignment: int, size: int, where: str) -> None:
    """Names once, offsets aligned, no two tensors over each other, and the file long enough for all of them."""
    if len({tensor.name for tensor, _ in found}) < len(found):
        names = sorted(tensor.name for tensor, _ in found)
        twice = next(name for name, after in pairwise(names) if name == after)
        raise CheckpointError(f"{where}: tensor {shown(twice)} appears twice; it must be given once")
    position, before = 0, ""
    for tensor, offset in sorted(found, key=lambda entry: entry[1]):
        label = f"{where}: tensor {shown(tensor.name)}"
        if offset % alignment:
            raise CheckpointError(f"{label}: offset {offset} is not a multiple of the alignment, {alignment}")
        if offset < position:
            raise CheckpointError(f"{label}: offset {offset} lies inside {shown(before)}, which ends at {position}")
        position, before = offset + tensor.nbytes, tensor.name
    missing = data_start + position - size
    if found and missing > 0:
        raise CheckpointError(
            f"{where}: truncated: the tensors end at byte {data_start + position}, the file has {size}:"
            f" {missing} bytes are missing"
        )
