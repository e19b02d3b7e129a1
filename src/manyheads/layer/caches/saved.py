"""Filled caches as a file, so that a long prompt is read once: a layer's (below) and those of transformers' models, in one format.

    save_caches([cache], "prompt.safetensors", [layer])
    (cache,) = load_caches("prompt.safetensors", [layer])

A safetensors file: tensors as they are held, each under `part.number.name`; and in its metadata of which weights they are and
how each layer's are kept. Loading maps the file; what is read of it is read when attention first does. Written tensor by
tensor, so that saving needs no second cache's memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.checkpoints.safetensors_header import read_header
from manyheads.errors import BackendError, CheckpointError
from manyheads.layer.caches import Cache, cache_for
from manyheads.ops.dtypes import safetensors_name
from manyheads.quoting import shown, shown_name, shown_path
from manyheads.report.files import check_target, file_appearing
from manyheads.spec import to_text

__all__ = ["Entry", "fingerprint", "load_caches", "read_entries", "save_caches", "write_entries"]

FORMAT = "manyheads.cache/2"  # 2: int8 keys are Hadamard-rotated
_HASHED_TENSORS = 4
_HASHED_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class Entry:
    """What a file holds of one layer's cache: `part` "self" or "cross", its kind, words and numbers, tensors by name."""

    part: str
    kind: str
    told: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def save_caches(caches: Sequence[Cache], path: str | os.PathLike[str], layers: Sequence[nn.Module]) -> None:
    """Write the caches of `layers`, one each, to `path`, whole or not at all: growing, static, rolling, int8, latent, state.

    Raises BackendError for caches that are empty or of other layers, ManyheadsError where the file cannot be written.
    """
    if len(caches) != len(layers):
        raise BackendError(f"each layer has one cache, found {len(caches)} caches and {len(layers)} layers")
    entries = []
    for number, (cache, layer) in enumerate(zip(caches, layers, strict=True)):
        if not isinstance(cache, Cache):
            raise BackendError(f"cache {number} is a {type(cache).__name__}; valid: what cache_for makes")
        if cache.spec != layer.spec:
            raise BackendError(
                f"cache {number} is of {to_text(cache.spec)}, layer {number} is {to_text(layer.spec)}: not its own"  # type: ignore[arg-type]
            )
        told, tensors = cache.saved()
        made = {"batch": cache.batch, "dtype": str(cache.dtype).removeprefix("torch.")}
        entries.append(Entry("self", cache.kind, {**told, **made}, tensors))
    write_entries(path, entries, model=_layers_fingerprint(layers), model_dtype=_dtype(layers))


def load_caches(path: str | os.PathLike[str], layers: Sequence[nn.Module]) -> list[Cache]:
    """The caches that were saved at `path`, for the same `layers` in the same dtype; growing ones map the file.

    Raises CheckpointError for a file that is no such cache or is damaged, and for other layers or another dtype.
    """
    entries, _ = read_entries(path, model=_layers_fingerprint(layers), model_dtype=_dtype(layers), of="these layers")
    if len(entries) != len(layers):
        raise CheckpointError(f"{shown_path(path)}: caches of {len(entries)} layers, found {len(layers)} layers")
    caches = []
    for entry, layer in zip(entries, layers, strict=True):
        device, told = next(layer.parameters()).device, entry.told
        cache = cache_for(
            layer.spec, batch=told["batch"], dtype=getattr(torch, told["dtype"]), device=device, kind=entry.kind,  # type: ignore[arg-type]
            capacity=told.get("capacity"),
        )  # fmt: skip
        cache.restore(told, {name: x.to(device) for name, x in entry.tensors.items()})
        caches.append(cache)
    return caches


def fingerprint(told: Any, tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of what is told of a model, as JSON, and of the beginnings of its first tensors."""
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode())
    for name, tensor in islice(tensors, _HASHED_TENSORS):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        beginning = tensor.detach().reshape(-1)[: _HASHED_BYTES // tensor.element_size()]
        digest.update(beginning.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _layers_fingerprint(layers: Sequence[nn.Module]) -> str:
    return fingerprint([fingerprint(to_text(layer.spec), layer.state_dict().items()) for layer in layers], ())  # type: ignore[arg-type]


def _dtype(layers: Sequence[nn.Module]) -> str:
    return ", ".join(sorted({str(next(layer.parameters()).dtype) for layer in layers}))


def write_entries(path: str | os.PathLike[str], entries: Sequence[Entry], **metadata: str) -> None:
    """Write a cache file, whole or not at all. Raises BackendError where there is nothing in it."""
    named = zip(_prefixes(entries), entries, strict=True)
    tensors = {prefix + name: x for prefix, each in named for name, x in each.tensors.items()}
    if not any(each.told.get("tokens", 1) for each in entries) or not any(x.numel() for x in tensors.values()):
        raise BackendError("the cache is empty: nothing would be saved")
    layers = [{"part": each.part, "kind": each.kind, **each.told} for each in entries]
    _write(path, tensors, {"format": FORMAT, **metadata, "layers": json.dumps(layers)})


def read_entries(
    path: str | os.PathLike[str], *, model: str, model_dtype: str, of: str
) -> tuple[list[Entry], Mapping[str, str]]:
    """The entries of a cache file, their tensors mapped, and its metadata; `of` names whose fingerprint `model` is.

    Raises CheckpointError for another file, a damaged one, and one of another model or dtype.
    """
    header, where = read_header(path, whole=("layers",)), shown_path(path)
    metadata = header.metadata
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{where}: no saved cache ({shown(metadata.get('format'))}, expected {shown(FORMAT)}): save_cache writes one"
        )
    if metadata.get("model_dtype") != model_dtype:
        raise CheckpointError(
            f"{where}: a cache of a model in {shown_name(metadata.get('model_dtype'))}; this one is in {model_dtype}"
        )
    if metadata.get("model") != model:
        raise CheckpointError(f"{where}: a cache of another model: configuration or weights differ from {of}")
    try:
        layers = [dict(each) for each in json.loads(metadata["layers"])]
        bare = [Entry(each.pop("part"), each.pop("kind"), each, {}) for each in layers]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise CheckpointError(
            f"{where}: damaged: the list of its layers cannot be read; save_cache writes it"
        ) from None
    from safetensors import safe_open

    with safe_open(os.fspath(path), framework="pt") as file:
        entries = [
            replace(
                each,
                tensors={
                    name.removeprefix(prefix): file.get_tensor(name)
                    for name in header.tensors
                    if name.startswith(prefix)
                },
            )
            for prefix, each in zip(_prefixes(bare), bare, strict=True)
        ]
    return entries, metadata


def _prefixes(entries: Iterable[Entry]) -> list[str]:
    """What the names of each entry's tensors start with: its part, and its number among those of that part."""
    numbers: defaultdict[str, count[int]] = defaultdict(count)
    return [f"{each.part}.{next(numbers[each.part])}." for each in entries]


def _write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """The file beside its place, then moved there. Wide elements come first, so that all lie at multiples of their size."""
    check_target(path)
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name in order:
        x = tensors[name]
        size = x.numel() * x.element_size()
        entries[name] = {"dtype": safetensors_name(x.dtype), "shape": list(x.shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(entries).encode()
    head += b" " * (-(8 + len(head)) % 64)
    with file_appearing(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in order:
            for sequence in tensors[name]:  # contiguous one sequence at a time
                file.write(memoryview(sequence.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
