"""What a layer is asked, checked once: every refusal names what was found, with its numbers, and what would be valid."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.layer.backends import NAMES as BACKENDS
from manyheads.layer.caches import Cache, Kept, StateCache
from manyheads.layer.caches.base import described, part_shapes
from manyheads.layer.latent import FORMS as LATENT_FORMS
from manyheads.layer.state import FORMS as STATE_FORMS
from manyheads.ops.arguments import check_axes, check_dropout, check_shape
from manyheads.ops.predicates import Padding, Visible
from manyheads.quoting import shown
from manyheads.spec import AttentionSpec, Borrowed, Cross, Latent, NoPositions, RelativeBuckets, State, to_text

__all__ = ["Call", "check_cache", "check_tokens", "places", "token_padding"]

WEIGHTS = ("none", "heads", "mean")


@dataclass(frozen=True, eq=False)
class Call:
    """One call of `Attention`, as it was asked. `checked` returns it with `visible`, `places` and `kv` in one form."""

    x: Tensor
    memory: Tensor | None
    cache: Cache | None
    visible: Visible | Tensor | None
    places: Tensor | None
    bias: Tensor | None
    table: Tensor | None
    kv: Any
    need_weights: str
    dropout: float
    backend: str
    form: str

    def checked(self, spec: AttentionSpec, like: Tensor) -> Call:
        """The same call, if it fits a layer of `spec` with weights like `like`; else SpecError."""
        x, cache = self.x, self.cache
        check_tokens(spec, like, x, self.memory)
        check_choices(spec, need_weights=self.need_weights, backend=self.backend, form=self.form, dropout=self.dropout)
        check_bias(spec, self.bias, self.table)
        if cache is not None:
            check_cache(spec, x, cache)
        check_source(spec, self.memory, self.kv, cache)
        call = replace(
            self,
            visible=mask(self.visible, batch=x.shape[0], heads=spec.num_heads, count=x.shape[1]),
            places=places(spec, x, self.places, cache),
            kv=None if self.kv is None else as_kept(spec, x, self.kv),
        )
        # before anything is appended: a call that is refused leaves the cache as it was
        if not (isinstance(spec.kv, State) or torch.compiler.is_compiling()):
            check_keys(spec, call)
        return call


def check_tokens(spec: AttentionSpec, like: Tensor, x: Tensor | None, memory: Tensor | None) -> None:
    """x (b, t, m), and memory (b, s, e) for cross-attention only, in the dtype and on the device of the layer."""
    if x is not None:
        _check_tokens(spec, like, "x", x, spec.d_model)
    if memory is None:
        return
    if not isinstance(spec.source, Cross):
        raise SpecError(f"{to_text(spec)} takes keys and values from its own tokens; memory is for cross-attention")
    _check_tokens(spec, like, "memory", memory, spec.source.d_memory)
    if x is not None and memory.shape[0] != x.shape[0]:
        raise SpecError(f"x and memory must have the same batch size; found {x.shape[0]} and {memory.shape[0]}")


def _check_tokens(spec: AttentionSpec, like: Tensor, name: str, tokens: Tensor, width: int) -> None:
    if tokens.dim() != 3 or tokens.shape[2] != width:
        raise SpecError(f"{name} must be (batch, tokens, {width}) for {to_text(spec)}; found {tuple(tokens.shape)}")
    if tokens.device != like.device:
        raise SpecError(
            f"{name} is on {tokens.device}, the layer's weights are on {like.device}: move one to the other"
        )
    if tokens.dtype != like.dtype and not torch.is_autocast_enabled(tokens.device.type):
        raise SpecError(f"{name} is {tokens.dtype}, the layer's weights are {like.dtype}: convert one to the other")


def check_choices(spec: AttentionSpec, *, need_weights: str, backend: str, form: str, dropout: float) -> None:
    """The words, and whether the layer has what they ask for."""
    forms = {Latent: LATENT_FORMS, State: STATE_FORMS}.get(type(spec.kv), ("auto",))
    for name, value, valid in (
        ("need_weights", need_weights, WEIGHTS), ("backend", backend, BACKENDS), ("form", form, forms),
    ):  # fmt: skip
        if value not in valid:
            raise SpecError(f"{name} must be one of {', '.join(valid)} for {to_text(spec)}; found {shown(value)}")
    if need_weights != "none" and backend in ("kernel", "tiled", "sdpa"):
        raise SpecError(
            f"the {backend} backend never holds the weights: need_weights {shown(need_weights)} needs plain or auto"
        )
    check_dropout(dropout)
    if isinstance(spec.kv, State) and (need_weights != "none" or dropout or backend != "auto"):
        raise SpecError(
            f"{to_text(spec)} has no softmax: need_weights must be none, dropout 0 and backend auto; "
            f"found {shown(need_weights)}, {dropout} and {shown(backend)}"
        )


def check_cache(spec: AttentionSpec, x: Tensor, cache: Cache) -> None:
    """A cache made for this layer's spec, this batch, dtype and device."""
    if not isinstance(cache, Cache):
        raise SpecError(
            f"cache must be one of manyheads.layer.caches, as cache_for makes them; found {type(cache).__name__}"
        )
    # records compare by their fields, which a compiled graph need not look into
    if cache.spec is not spec and not torch.compiler.is_compiling() and cache.spec != spec:
        raise SpecError(f"the cache of another layer: {described(cache)}; this one is {to_text(spec)}")
    if cache.batch != x.shape[0]:
        raise SpecError(f"the cache holds {cache.batch} sequences, x has {x.shape[0]}; reorder drops or repeats rows")
    wide_state = isinstance(cache, StateCache) and cache.dtype.itemsize >= x.dtype.itemsize
    cast = torch.is_autocast_enabled(x.device.type)  # then the layer's products have another dtype than x, too
    if cache.device != x.device or (cache.dtype != x.dtype and not wide_state and not cast):
        raise SpecError(f"{described(cache)} does not fit x in {x.dtype} on {x.device}")


def places(spec: AttentionSpec, x: Tensor, positions: Tensor | None, cache: Cache | None) -> Tensor | None:
    """Positions (t,) or (b, t) as (b or 1, t), integers of 0 or more; where callers gave some before, the next ones."""
    if positions is None:
        cross = isinstance(spec.source, Cross)
        if cross and cache is not None and not isinstance(spec.positions, NoPositions):
            raise SpecError(
                f"{to_text(spec)}: a cache of the memory does not know where the queries stand; give positions"
            )
        return None if cache is None or cross else cache.next_positions(x.shape[1])
    count = x.shape[1]
    shapes = ((count,), (1, count), (x.shape[0], count))
    if positions.is_floating_point() or positions.dtype == torch.bool or tuple(positions.shape) not in shapes:
        raise SpecError(
            f"positions must be integers ({count},) or {(x.shape[0], count)}, found {positions.dtype} {tuple(positions.shape)}"
        )
    if positions.device != x.device:
        raise SpecError(f"positions are on {positions.device}, x is on {x.device}: move one to the other")
    # on other devices looking would wait for them
    if positions.device.type == "cpu" and positions.numel() and not torch.compiler.is_compiling():
        lowest, highest = int(positions.min()), int(positions.max())
        if lowest < 0 or highest >= 2**53:
            raise SpecError(f"positions must lie in [0, 2^53), found {lowest} to {highest}")
    return positions.expand(1, -1) if positions.dim() == 1 else positions


def mask(visible: Visible | Tensor | None, *, batch: int, heads: int, count: int) -> Visible | Tensor | None:
    """A caller's mask: a predicate, or booleans (t, s), (b, t, s) or (b, 1 or h, t, s), made four-dimensional; three axes are
    refused where b = h > 1, as everywhere.
    """
    if visible is None or isinstance(visible, Visible):
        return visible
    shapes = "(t, s), (b, t, s) or (b, 1 or h, t, s)"
    if not isinstance(visible, Tensor):
        raise SpecError(
            f"visible must be a predicate of manyheads.ops.masks or booleans {shapes}; found {shown(visible)}"
        )
    if visible.dtype != torch.bool:
        raise SpecError(
            f"visible must be boolean, True = may attend, found {visible.dtype}; an additive mask is a bias"
        )
    check_axes("visible", visible, batch=batch, heads=heads)
    found = tuple(visible.shape)
    wanted = {2: (count,), 3: (batch, count), 4: (batch, heads, count)}.get(len(found))
    fits = wanted is not None and all(size in (1, need) for size, need in zip(found, wanted, strict=False))
    if not fits or (len(found) == 2 and found[0] != count):
        hint = "; padding (b, s) is said by masks.padding(keep)" if found[:1] == (batch,) and len(found) == 2 else ""
        sizes = f"b = {batch}, h = {heads}, t = {count}"
        raise SpecError(f"visible must be {shapes} with {sizes}, found {found}{hint}")
    return visible[:, None] if len(found) == 3 else visible[(None,) * (4 - len(found))]


def token_padding(
    spec: AttentionSpec, visible: Visible | Tensor | None, x: Tensor, cache: StateCache | None
) -> Tensor | None:
    """(b, t), True = a token: the only mask that a running state knows; of all tokens so far, the last t."""
    if visible is None:
        return None
    if not isinstance(visible, Padding):
        raise SpecError(f"{to_text(spec)} can only leave tokens out: visible must be masks.padding(keep)")
    found, count = tuple(visible.keep.shape), x.shape[1]
    if not torch.compiler.is_compiling():
        wanted = (x.shape[0], count + (0 if cache is None else cache.length))
        if found != wanted:
            raise SpecError(f"padding must be (batch, tokens so far) {wanted}, found {found}")
    return visible.keep[:, found[1] - count :]


def check_bias(spec: AttentionSpec, bias: Tensor | None, table: Tensor | None) -> None:
    """A bias (t, s) or (b or 1, h or 1, t, s), and T5's table (buckets, h) where the positions are such."""
    buckets = spec.positions if isinstance(spec.positions, RelativeBuckets) else None
    if table is not None and (buckets is None or tuple(table.shape) != (buckets.num_buckets, spec.num_heads)):
        wanted = "no table" if buckets is None else f"a table {(buckets.num_buckets, spec.num_heads)}"
        raise SpecError(f"{to_text(spec)} takes {wanted}, found {tuple(table.shape)}")
    if buckets is not None and table is None and bias is None:
        raise SpecError(
            f"{to_text(spec)} needs the stack's table ({buckets.num_buckets}, {spec.num_heads}), or its bias"
        )
    if bias is None:
        return
    if isinstance(spec.kv, State):
        raise SpecError(f"{to_text(spec)} has no logits to add a bias to")
    if not isinstance(bias, Tensor) or bias.dim() not in (2, 4):
        found = tuple(bias.shape) if isinstance(bias, Tensor) else repr(bias)
        raise SpecError(f"bias must be (t, s) or (b or 1, h or 1, t, s), found {found}")
    if bias.device.type == "cpu" and not (torch.compiler.is_compiling() or bias.requires_grad):
        ones = (bias == 1).any() and ((bias == 0) | (bias == 1)).all()
        if bias.is_floating_point() and bool(ones):
            warnings.warn(
                "a bias of only 0 and 1 is added to the logits and hides nothing; a mask is boolean and goes in visible",
                UserWarning,
                stacklevel=4,
            )


def check_keys(spec: AttentionSpec, call: Call) -> None:
    """Masks and biases must fit the keys there will be: all tokens so far, or a static cache's whole capacity."""
    if call.visible is None and call.bias is None:
        return
    batch, count = call.x.shape[0], call.x.shape[1]
    source, memory, cache = call.x if call.memory is None else call.memory, isinstance(spec.source, Cross), call.cache
    if call.kv is not None:
        keys = int(call.kv.tokens)
    elif cache is None:
        keys = source.shape[1]
    else:
        keys = cache.length if memory and cache.length else cache.length + source.shape[1]
    for name, tensor in (("visible", call.visible), ("bias", call.bias)):
        if isinstance(tensor, Tensor):
            room = getattr(cache, "capacity", keys)
            columns = room if tensor.shape[-1] == room else keys
            check_shape(name, tensor, batch=batch, heads=spec.num_heads, queries=count, keys=columns)
    if isinstance(call.visible, Visible):
        kept = call.visible.keep.shape[1] if isinstance(call.visible, Padding) else keys
        room = kept if kept == getattr(cache, "capacity", None) else keys
        call.visible.check(batch=batch, heads=spec.num_heads, queries=count, keys=room)


def as_kept(spec: AttentionSpec, x: Tensor, kv: Kept | tuple[Tensor, Tensor]) -> Kept:
    """Keys and values that were made elsewhere: what a layer's `keep` returned, or a pair of tensors in order."""
    kept = kv if isinstance(kv, Kept) else Kept(kv[0], kv[1], kv[0].shape[2])
    (heads, width), (_, v_width) = part_shapes(spec)
    wanted = f"({x.shape[0]}, {heads}, s, {width}) and ({x.shape[0]}, {heads}, s, {v_width})"
    for part, size in ((kept.keys, width), (kept.values, v_width)):
        shape = tuple(part.shape)
        if len(shape) != 4 or (shape[0], shape[1], shape[3]) != (x.shape[0], heads, size):
            raise SpecError(f"{to_text(spec)} reads keys and values {wanted}, found {shape}")
    if kept.newest is not None and kept.newest.shape[1] != x.shape[1]:
        raise SpecError(
            f"the {kept.newest.shape[1]} newest keys stand at positions of their own, x has {x.shape[1]} tokens"
        )
    return kept


def check_source(spec: AttentionSpec, memory: Tensor | None, kv: object, cache: Cache | None) -> None:
    """Whether keys and values have exactly one place to come from."""
    if isinstance(spec.source, Borrowed) and (kv is None or cache is not None):
        raise SpecError(
            f"{to_text(spec)} reads the keys and values of layer {spec.source.layer}: give kv, and no cache"
        )
    if kv is not None and (memory is not None or cache is not None):
        raise SpecError(
            "kv are keys and values that are there already: memory and cache go to the layer that made them"
        )
    if kv is not None and isinstance(spec.kv, State):
        raise SpecError(f"{to_text(spec)} keeps a state: it reads no keys and values of others")
    if isinstance(spec.source, Cross) and memory is None and kv is None and (cache is None or not cache.length):
        raise SpecError(
            f"{to_text(spec)} needs a memory (batch, keys, {spec.source.d_memory}), or a cache that holds one"
        )
    if memory is not None and cache is not None and cache.length not in (0, memory.shape[1]):
        raise SpecError(
            f"the cache holds a memory of {cache.length} tokens, found one of {memory.shape[1]}: leave it out, or reset the cache"
        )
