"""Attention: one layer of any member of the family, built from its spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from manyheads.errors import SpecError
from manyheads.layer import door, heads, latent, parameters, placing, state
from manyheads.layer.caches import Cache, Kept, StateCache
from manyheads.layer.core import Core
from manyheads.ops.precision import as_autocast
from manyheads.ops.predicates import Visible
from manyheads.spec import AttentionSpec, Borrowed, Cross, DynamicScaling, Heads, LongRopeScaling, Rope, State, to_text

__all__ = ["Attention"]


class Attention(nn.Module):
    """One attention layer of `spec`: multi-head, grouped, multi-query, latent or linear; self-, cross- or borrowing.

        head_h = softmax(cap(scale · q_h k_j^T) + bias, visible) v_j,  j = h // (H/K);  y = [head_1 .. head_H] W_o

    q_h = norm(x W_q,h), k_j = norm(x W_k,j), both rotated by the rotary embedding; v_j = x W_v,j; x tokens (b, t, m).
    Latent attention makes keys and values of one latent a token, W_k_up c and W_v_up c, or scores the latents
    themselves (`ops.latent`); linear attention keeps a running state instead (`layer.state`).

    Parameters are the inventory's (`manyheads.weights(spec)`), each in its own shape under its canonical name with "_"
    for ".": `q` (h, q, m), `q_bias` (h, q), `o` (m, y, v). Xavier uniform a projection, biases 0, as torch's module.

    Where libraries differ, this layer does as follows (torch = nn.MultiheadAttention):

    masks       boolean, True = may attend (torch's module: True = blocked); a float mask is a bias and is added
    causal      aligned at the end: the last query sees the last key (SDPA's flag aligns at the start)
    window      W keys, oneself included
    empty rows  a query that sees nothing gives zeros, with zero gradients (torch: NaN where weights are asked for)
    weights     probabilities before dropout, a head or their mean (torch: after dropout)
    grouping    query head h reads key/value head h // (H/K)
    order       scale, softcap, bias and masks, sinks, softmax; in float32 or wider, and so are norms and angles
    gate        sigmoid(x W_gate) on softmax heads; silu(x W_gate) after the norm of linear ones (Qwen3-Next)

    Sources: arXiv 1706.03762 section 3.2; grouped heads 1911.02150, 2305.13245; latent 2405.04434 section 2.1; linear
    2006.16236, 2412.06464; rotary 2104.09864.
    """

    def __init__(
        self, spec: AttentionSpec, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        if not isinstance(spec, AttentionSpec):
            raise SpecError(f"Attention is built from an AttentionSpec, found {type(spec).__name__}")
        if isinstance(spec.kv, State):
            state.check(spec)
        self.spec = spec
        parameters.register(self, spec, dtype=dtype, device=device)
        parameters.reset(self, spec)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        cache: Cache | None = None,
        visible: Visible | Tensor | None = None,
        positions: Tensor | None = None,
        bias: Tensor | None = None,
        table: Tensor | None = None,
        kv: Kept | tuple[Tensor, Tensor] | None = None,
        need_weights: str = "none",
        dropout: float = 0.0,
        backend: str = "auto",
        form: str = "auto",
    ) -> Tensor | tuple[Tensor, Tensor]:
        """y (b, t, m); with `need_weights`, also the probabilities before dropout.

        x             new tokens (b, t, m): with a cache they follow those it has seen
        memory        (b, s, e) for cross-attention; a cache keeps its keys and values, then it may be left out
        cache         from `caches.cache_for(spec, ...)`
        visible       a predicate of `ops.masks`, or booleans (t, s), (b, t, s), (b, 1 or h, t, s), True = may attend;
                      combined with the spec's mask by &; (b, t, s) is refused where b = h > 1: write [:, None]. s counts
                      all tokens so far, whatever the cache still holds
        positions     (t,) or (b, t), where the new tokens stand; left out: after the cache's, or from 0
        bias          (t, s) or (b or 1, h or 1, t, s), added to the logits after scale and softcap
        table         (buckets, h): T5's learned bias, the stack's, where positions are RelativeBuckets
        kv            keys and values from another layer's `keep`: needed where the spec borrows
        need_weights  "none", "heads" (b, h, t, s) or "mean" (b, t, s); s = what the cache returned
        dropout       share of the probabilities dropped; give 0 when not training
        backend       "auto", "kernel", "plain", "tiled" or "sdpa" (`layer.backends`): what computes softmax attention where it
                      computes this call
        form          latent: "auto" (by query length), "expanded", "absorbed"; linear: "auto", "recurrent", "chunked",
                      "quadratic"

        Raises SpecError for what does not fit, with the names and numbers.
        """
        call = door.Call(
            x, memory, cache, visible, positions, bias, table, kv, need_weights, dropout, backend, form
        ).checked(self.spec, self.o)  # fmt: skip
        if isinstance(self.spec.kv, State):
            return self._output(x, self._linear(call))
        mixed, weights = self._softmax(call)
        y = self._output(x, mixed)
        if weights is None:
            return y
        return y, weights if need_weights == "heads" else weights.mean(1)

    def keep(self, source: Tensor, *, cache: Cache | None = None, positions: Tensor | None = None) -> Kept:
        """The keys and values of tokens (or a memory) (b, s, m), appended to `cache` if there is one.

        For layers that borrow: `kept = lender.keep(x, cache=...)`, then `lender(x, kv=kept)` and `borrower(z, kv=kept)`.
        """
        if isinstance(self.spec.kv, State) or isinstance(self.spec.source, Borrowed):
            raise SpecError(f"{to_text(self.spec)} makes no keys and values")
        cross = isinstance(self.spec.source, Cross)
        door.check_tokens(self.spec, self.o, None if cross else source, source if cross else None)
        if cache is not None:
            door.check_cache(self.spec, source, cache)
        places = door.places(self.spec, source, positions, cache)
        rotation = self._rotation(source.shape[1], 0 if cache is None else cache.tokens, places)
        return self._keep(source, cache, places, None, rotation)

    def load(self, canonical: Mapping[str, Tensor]) -> None:
        """Copy weights by their canonical names; SpecError where one is missing, unknown or of another shape."""
        parameters.load(self, self.spec, canonical)

    def _keep(
        self,
        source: Tensor,
        cache: Cache | None,
        places: Tensor | None,
        visible: Visible | Tensor | None,
        rotation: heads.Rotation | None,
    ) -> Kept:
        """What attention reads: new tokens projected, rotated and appended; a memory only once. `visible` tells padding."""
        if isinstance(self.spec.source, Cross) and cache is not None and cache.length:
            return cache.kept()
        project = heads.keys_values if isinstance(self.spec.kv, Heads) else latent.kept_parts
        keys, values = project(self, source, rotation)
        if cache is not None:
            keep = placing.padding(visible)
            return replace(cache.update(keys, values, positions=places, keep=keep), newest=places, cached=True)
        return Kept(keys, values, source.shape[1], positions=places, newest=places)

    def _softmax(self, call: door.Call) -> tuple[Tensor, Tensor | None]:
        """Heads (b, h, t, v), and the weights (b, h, t, s) where they are wanted."""
        spec, x, count = self.spec, call.x, call.x.shape[1]
        cross = isinstance(spec.source, Cross)
        kept, rotation, source = call.kv, None, x if call.memory is None else call.memory
        if kept is None:
            start, own = 0 if call.cache is None else call.cache.tokens, None if cross else call.places
            rotation = self._rotation(source.shape[1], start, own)
            kept = self._keep(source, call.cache, own, call.visible, rotation)
        places = kept.newest if call.places is None and not cross else call.places
        if cross or call.kv is not None:  # else queries stand where the new keys do
            rotation = self._rotation(count, 0 if cross else kept.tokens - count, places)
        place = placing.place(spec, kept, count, places)
        seen = placing.seen(place, call.visible, kept, batch=x.shape[0], heads=spec.num_heads, count=count)
        core = Core(
            backend=call.backend,
            want_weights=call.need_weights != "none",
            terms={
                "scale": spec.scale, "visible": seen, "offset": place.offset, "softcap": spec.softcap,
                "bias": placing.added_bias(spec, place, kept, bias=call.bias, table=call.table, count=count),
                "sinks": self.sinks if spec.sinks else None, "dropout": call.dropout,
            },
        )  # fmt: skip
        if isinstance(spec.kv, Heads):
            q, k, v = as_autocast(heads.queries(self, x, rotation), kept.keys, kept.values)
            mixed = core(q, k, v)
        else:
            mixed = latent.attend(self, x, kept, core, rotation=rotation, form=call.form)
        return mixed, core.weights

    def _linear(self, call: door.Call) -> Tensor:
        """Heads (b, y, t, v) of linear attention."""
        cache = call.cache
        assert cache is None or isinstance(cache, StateCache)
        start = 0 if cache is None else cache.tokens
        return state.attend(
            self,
            call.x,
            rotation=self._rotation(call.x.shape[1], start, call.places),
            keep=door.token_padding(self.spec, call.visible, call.x, cache),
            cache=cache,
            positions=call.places,
            form=call.form,
        )

    def _rotation(self, count: int, start: int | Tensor, places: Tensor | None) -> heads.Rotation | None:
        """The rotation of `count` tokens from `start` on, or at their own places."""
        rope = self.spec.positions
        if not isinstance(rope, Rope):
            return None
        numbers = start + torch.arange(count, device=self.o.device) if places is None else places
        length = None
        if isinstance(rope.scaling, DynamicScaling | LongRopeScaling):
            length = start + count if isinstance(start, int) and places is None else int(numbers.max()) + 1
        return heads.rotation_at(self.spec, numbers, length=length, dtype=self.o.dtype)

    def _output(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Heads (b, y, t, v), gated where there is a gate, through W_o."""
        if self.spec.output_gate:
            gate = heads.projected(x, self.gate)
            mixed = mixed * (silu(gate) if isinstance(self.spec.kv, State) else torch.sigmoid(gate))
        return heads.joined(mixed, self.o, getattr(self, "o_bias", None))

    def extra_repr(self) -> str:
        """The spec, as text."""
        return to_text(self.spec)
