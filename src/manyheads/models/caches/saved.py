"""A filled cache as a file, so that a long prompt is read once.

    save_cache(cache, "prompt.safetensors", model)
    cache = load_cache("prompt.safetensors", model)
    model.generate(prompt_and_more, cache=cache)

A safetensors file: keys and values as they are stored, and in its metadata which model they are of. Loading maps the file;
what is read of it is read when attention first does. Written tensor by tensor, so that saving needs no second cache's memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.checkpoints.safetensors_header import read_header
from manyheads.errors import BackendError, CheckpointError
from manyheads.quoting import shown, shown_name, shown_path
from manyheads.report.files import check_target, file_appearing

__all__ = ["fingerprint", "load_cache", "save_cache"]

FORMAT = "manyheads.cache/2"  # 2: int8 keys are turned
_HASHED_TENSORS = 4
_HASHED_BYTES = 2**20
# Of a configuration: where it lies, how it is run and what it is called do not change what is cached.
_VOLATILE = frozenset({
    "_name_or_path", "architectures", "attn_implementation", "dtype", "output_attentions", "output_hidden_states",
    "return_dict", "torch_dtype", "transformers_version", "use_cache",
})  # fmt: skip
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int8: "I8",
    torch.int64: "I64",
}  # fmt: skip


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model's configuration and of the beginnings of its first tensors."""
    config: Any = model.config  # type: ignore[union-attr]
    told = _without(config.to_dict())
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode())
    for name, tensor in list(model.state_dict().items())[:_HASHED_TENSORS]:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        beginning = tensor.detach().reshape(-1)[: _HASHED_BYTES // tensor.element_size()]
        digest.update(beginning.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _without(told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without(value) if isinstance(value, dict) else value
        for key, value in told.items()
        if key not in _VOLATILE
    }


def save_cache(cache: Any, path: str | os.PathLike[str], model: nn.Module) -> None:
    """Write `cache`, filled by `model`, to `path`, whole or not at all.

    Raises BackendError for caches whose layers are not ours (`manyheads.cache` makes one that are, `enable(cache=True)` makes
    every new one) or are empty, and ManyheadsError where the file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    kinds: list[Any] = []
    for part, layers in _parts(cache):
        for number, layer in enumerate(layers):
            state = getattr(layer, "kept_state", None) or _stock_state(layer)
            if state is None:
                raise BackendError(
                    f"layer {number} of the cache is a {type(layer).__name__}, which is not ours; valid: what "
                    "manyheads.cache(model) returns, or a cache made after manyheads.enable(cache=True)"
                )
            told, kept = state()
            kinds.append({"part": part, "kind": type(layer).__name__, **told})
            tensors.update({f"{part}.{number}.{name}": x for name, x in kept.items()})
    if not any(x.numel() for x in tensors.values()):
        raise BackendError("the cache is empty: nothing would be saved")
    metadata = {
        "format": FORMAT, "model": fingerprint(model), "model_dtype": str(next(model.parameters()).dtype),
        "stored": _stored(cache), "layers": json.dumps(kinds),
    }  # fmt: skip
    _write(path, tensors, metadata)


def load_cache(path: str | os.PathLike[str], model: nn.Module) -> Any:
    """The cache that was saved at `path`, for the same `model` in the same dtype; its tensors are mapped, not read.

    Raises CheckpointError for a file that is no such cache or is damaged, and for another model or dtype.
    """
    header, where = read_header(path, whole=("layers",)), shown_path(path)
    metadata = header.metadata
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{where}: no saved cache ({shown(metadata.get('format'))}, expected {shown(FORMAT)}): save_cache writes one"
        )
    dtype = str(next(model.parameters()).dtype)
    if metadata.get("model_dtype") != dtype:
        raise CheckpointError(
            f"{where}: a cache of a model in {shown_name(metadata.get('model_dtype'))}; this one is in {dtype}"
        )
    if metadata.get("model") != fingerprint(model):
        raise CheckpointError(
            f"{where}: a cache of another model: configuration or weights differ from this {type(model).__name__}"
        )
    from safetensors import safe_open

    from manyheads.models.enable import cache as made

    told, kinds = _told(metadata, where)
    cache = made(model, dtype=metadata.get("stored", "model"))
    layers = [(part, number, layer) for part, each in _parts(cache) for number, layer in enumerate(each)]
    if kinds != [type(layer).__name__ for _, _, layer in layers]:
        raise CheckpointError(f"{where}: its layers are not those that this version makes for {type(model).__name__}")
    with safe_open(os.fspath(path), framework="pt") as file:
        for entry, (part, number, layer) in zip(told, layers, strict=True):
            start = f"{part}.{number}."
            kept = {
                name.removeprefix(start): file.get_tensor(name) for name in header.tensors if name.startswith(start)
            }
            kept = {name: x.to(model.device) for name, x in kept.items()}
            restore = getattr(layer, "restore", None)
            restore(entry, kept) if restore else _restore_stock(layer, entry, kept)
    return _again(cache)


def _told(metadata: Mapping[str, str], where: str) -> tuple[list[dict[str, Any]], list[str]]:
    """What the file says of each layer, and of which kind each is."""
    try:
        told = json.loads(metadata["layers"])
        return told, [entry["kind"] for entry in told]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise CheckpointError(
            f"{where}: damaged: the list of its layers cannot be read; save_cache writes it"
        ) from None


def _parts(cache: Any) -> list[tuple[str, list[Any]]]:
    """Layers of a cache, or of the two of an encoder-decoder."""
    if hasattr(cache, "self_attention_cache"):
        return [("self", cache.self_attention_cache.layers), ("cross", cache.cross_attention_cache.layers)]
    return [("self", cache.layers)]


def _again(cache: Any) -> Any:
    """An encoder-decoder's cache, told that its cross-attention is there."""
    if hasattr(cache, "self_attention_cache"):
        return type(cache)(cache.self_attention_cache, cache.cross_attention_cache)
    return cache


def _stored(cache: Any) -> str:
    return getattr(getattr(cache, "self_attention_cache", cache), "stored", "model")


def _stock_state(layer: Any) -> Any:
    """How to save a layer that stays transformers' own: states of linear layers, and layers that hold nothing."""
    from manyheads.models.caches.hybrid import linear_state

    if type(layer).__name__ == "DummyLayer":
        return lambda: ({}, {})
    return (lambda: linear_state(layer)) if type(layer).__name__ == "LinearAttentionLayer" else None


def _restore_stock(layer: Any, told: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None:
    from manyheads.models.caches.hybrid import restore_linear

    if hasattr(layer, "conv_states"):
        restore_linear(layer, told, kept)


def _write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """The file beside its place, then moved there. Wide elements come first, so that all lie at multiples of their size."""
    check_target(path)
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name in order:
        x = tensors[name]
        size = x.numel() * x.element_size()
        entries[name] = {"dtype": _NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(entries).encode()
    head += b" " * (-(8 + len(head)) % 64)
    with file_appearing(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in order:
            for sequence in tensors[name]:  # contiguous one sequence at a time
                file.write(memoryview(sequence.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
