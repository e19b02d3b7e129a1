"""The inventory: every tensor of a layer, a block, a stack or a whole model, with named axes.

Parameter counts are sums over it, modules are built from it, checkpoint headers are checked against it name by name, and
a family's layout says how each tensor is stored. Names are canonical (`decoder.layers.3.self.q`); files have their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import prod

from manyheads.record import record
from manyheads.spec import check
from manyheads.spec.attention import AttentionSpec, Borrowed
from manyheads.spec.kv import Heads, Latent, State
from manyheads.spec.norms import Norm
from manyheads.spec.stack import Block, Mlp, Moe, Stack, StackSpec

__all__ = ["Weight", "count", "weights"]


@record
class Weight:
    """One tensor: its canonical name, the letter of each axis (`manyheads.spec.axes`) and the length of each.

    `part`: attention, mlp, norm, embedding, head or other. `buffer`: stored, but not a parameter.
    """

    name: str
    axes: str
    shape: tuple[int, ...]
    part: str
    buffer: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def sizes(self) -> dict[str, int]:
        """Length of each axis by its letter."""
        return dict(zip(self.axes.split(), self.shape, strict=True))


def weights(spec: AttentionSpec | Mlp | Moe | Block | Stack | StackSpec, d_model: int = 0) -> tuple[Weight, ...]:
    """Every tensor of `spec`, parameters and buffers, in order. `d_model` is needed where there is no attention to say it: a lone Mlp, Moe or their block."""
    if isinstance(spec, AttentionSpec):
        return tuple(_attention(spec, ""))
    if isinstance(spec, Mlp | Moe):
        check.size("d_model", d_model)
        return tuple(_mlp(spec, d_model, ""))
    if isinstance(spec, Block):
        return tuple(_block(spec, _width(spec, d_model), ""))
    if isinstance(spec, Stack):
        return tuple(_stack(spec, ""))
    return _whole(spec)


@lru_cache(maxsize=16)
def _whole(model: StackSpec) -> tuple[Weight, ...]:
    """Kept for a few models: a price asks for the same inventory many times, and a mixture's has thousands of tensors."""
    return tuple(_model(model))


def count(items: Iterable[Weight], part: str | None = None, *, buffers: bool = False) -> int:
    """Elements of the parameters among `items` (with `buffers`, of the buffers too), of one `part` if named."""
    return sum(w.elements for w in items if (part is None or w.part == part) and (buffers or not w.buffer))


def _width(block: Block, d_model: int) -> int:
    if not block.attentions:
        check.size("d_model", d_model)
    return block.attentions[0].d_model if block.attentions else d_model


def _make(prefix: str, part: str, name: str, buffer: bool = False, /, **sizes: int) -> Weight:  # noqa: FBT001, FBT002
    return Weight(prefix + name, " ".join(sizes), tuple(sizes.values()), part, buffer)


def _norm(norm: Norm | None, prefix: str, axes: dict[str, int], part: str = "norm") -> Iterator[Weight]:
    if norm is None or norm.gain == "none":
        return
    yield _make(prefix, part, "weight", **axes)
    if norm.shift:
        yield _make(prefix, part, "bias", **axes)


def _attention(spec: AttentionSpec, prefix: str) -> Iterator[Weight]:
    if isinstance(spec.kv, Heads):
        yield from _heads(spec, spec.kv, prefix)
    elif isinstance(spec.kv, Latent):
        yield from _latent(spec, spec.kv, prefix)
    else:
        yield from _state(spec, spec.kv, prefix)
    if spec.output_gate:
        yield _make(prefix, "attention", "gate", y=spec.num_output_heads, v=spec.v_head_dim, m=spec.d_model)
    yield _make(prefix, "attention", "o", m=spec.d_model, y=spec.num_output_heads, v=spec.v_head_dim)
    if spec.bias.o:
        yield _make(prefix, "attention", "o.bias", m=spec.d_model)
    if spec.sinks:
        yield _make(prefix, "attention", "sinks", h=spec.num_heads)


def _source_axis(spec: AttentionSpec) -> dict[str, int]:
    return {"m": spec.d_model} if spec.d_source == spec.d_model else {"e": spec.d_source}


def _heads(spec: AttentionSpec, kv: Heads, prefix: str) -> Iterator[Weight]:
    source, own = _source_axis(spec), not isinstance(spec.source, Borrowed)
    yield _make(prefix, "attention", "q", h=spec.num_heads, q=kv.head_dim, m=spec.d_model)
    if spec.bias.q:
        yield _make(prefix, "attention", "q.bias", h=spec.num_heads, q=kv.head_dim)
    if own:
        yield _make(prefix, "attention", "k", k=kv.num_kv_heads, q=kv.head_dim, **source)
        if spec.bias.k:
            yield _make(prefix, "attention", "k.bias", k=kv.num_kv_heads, q=kv.head_dim)
        yield _make(prefix, "attention", "v", k=kv.num_kv_heads, v=kv.v_head_dim, **source)
        if spec.bias.v:
            yield _make(prefix, "attention", "v.bias", k=kv.num_kv_heads, v=kv.v_head_dim)
    if spec.qk_norm is not None:
        shared = spec.qk_norm.scope == "head"
        q_axes = {"q": kv.head_dim} if shared else {"h": spec.num_heads, "q": kv.head_dim}
        k_axes = {"q": kv.head_dim} if shared else {"k": kv.num_kv_heads, "q": kv.head_dim}
        yield from _norm(spec.qk_norm.norm, prefix + "q_norm.", q_axes, "attention")
        if own:
            yield from _norm(spec.qk_norm.norm, prefix + "k_norm.", k_axes, "attention")


def _latent(spec: AttentionSpec, kv: Latent, prefix: str) -> Iterator[Weight]:
    heads, source = spec.num_heads, _source_axis(spec)
    if kv.q_rank:
        yield _make(prefix, "attention", "q_down", a=kv.q_rank, m=spec.d_model)
        if spec.bias.q:
            yield _make(prefix, "attention", "q_down.bias", a=kv.q_rank)
        yield from _norm(kv.norm, prefix + "q_down_norm.", {"a": kv.q_rank}, "attention")
        yield _make(prefix, "attention", "q_up", h=heads, q=kv.head_dim, a=kv.q_rank)
    else:
        yield _make(prefix, "attention", "q", h=heads, q=kv.head_dim, m=spec.d_model)
        if spec.bias.q:
            yield _make(prefix, "attention", "q.bias", h=heads, q=kv.head_dim)
    yield _make(prefix, "attention", "kv_down", c=kv.rank, **source)
    if kv.rope_dim:
        yield _make(prefix, "attention", "k_rope", r=kv.rope_dim, **source)
    if spec.bias.k:
        yield _make(prefix, "attention", "kv_down.bias", c=kv.rank)
        if kv.rope_dim:
            yield _make(prefix, "attention", "k_rope.bias", r=kv.rope_dim)
    yield from _norm(kv.norm, prefix + "kv_down_norm.", {"c": kv.rank}, "attention")
    yield _make(prefix, "attention", "k_up", h=heads, d=kv.nope_dim, c=kv.rank)
    yield _make(prefix, "attention", "v_up", h=heads, v=kv.v_head_dim, c=kv.rank)


def _state(spec: AttentionSpec, kv: State, prefix: str) -> Iterator[Weight]:
    yield _make(prefix, "attention", "q", h=spec.num_heads, q=kv.head_dim, m=spec.d_model)
    if spec.bias.q:
        yield _make(prefix, "attention", "q.bias", h=spec.num_heads, q=kv.head_dim)
    yield _make(prefix, "attention", "k", k=kv.num_key_heads, q=kv.head_dim, m=spec.d_model)
    if spec.bias.k:
        yield _make(prefix, "attention", "k.bias", k=kv.num_key_heads, q=kv.head_dim)
    yield _make(prefix, "attention", "v", j=kv.num_value_heads, v=kv.v_head_dim, m=spec.d_model)
    if spec.bias.v:
        yield _make(prefix, "attention", "v.bias", j=kv.num_value_heads, v=kv.v_head_dim)
    if kv.feature_map == "learned":
        yield _make(prefix, "attention", "q_map", h=spec.num_heads, q=kv.head_dim, f=kv.feature_dim)
        yield _make(prefix, "attention", "k_map", k=kv.num_key_heads, q=kv.head_dim, f=kv.feature_dim)
    if kv.conv_width:
        yield _make(prefix, "attention", "q_conv", h=spec.num_heads, q=kv.head_dim, z=kv.conv_width)
        yield _make(prefix, "attention", "k_conv", k=kv.num_key_heads, q=kv.head_dim, z=kv.conv_width)
        yield _make(prefix, "attention", "v_conv", j=kv.num_value_heads, v=kv.v_head_dim, z=kv.conv_width)
    channels = {"none": {}, "per_head": {}, "per_channel": {"f": kv.feature_dim}}[kv.decay]
    if kv.decay != "none":
        yield _make(prefix, "attention", "decay", n=kv.num_state_heads, **channels, m=spec.d_model)
        yield _make(prefix, "attention", "decay_rate", n=kv.num_state_heads, **channels)
        yield _make(prefix, "attention", "decay_bias", n=kv.num_state_heads, **channels)
    if kv.beta == "per_head":
        yield _make(prefix, "attention", "beta", n=kv.num_state_heads, m=spec.d_model)
    elif kv.beta == "scalar":
        yield _make(prefix, "attention", "beta", i=1, m=spec.d_model)
    yield from _norm(kv.norm, prefix + "out_norm.", {"v": kv.v_head_dim}, "attention")


def _mlp(mlp: Mlp | Moe, d_model: int, prefix: str) -> Iterator[Weight]:
    if isinstance(mlp, Moe):
        yield from _moe(mlp, d_model, prefix)
        return
    for name in ("gate", "up") if mlp.gated else ("up",):
        yield _make(prefix, "mlp", name, w=mlp.width, m=d_model)
        if mlp.bias:
            yield _make(prefix, "mlp", f"{name}.bias", w=mlp.width)
    yield _make(prefix, "mlp", "down", m=d_model, w=mlp.width)
    if mlp.bias:
        yield _make(prefix, "mlp", "down.bias", m=d_model)


def _moe(moe: Moe, d_model: int, prefix: str) -> Iterator[Weight]:
    yield _make(prefix, "mlp", "router", x=moe.experts, m=d_model)
    if moe.router_bias != "none":
        yield _make(prefix, "mlp", "router.bias", moe.router_bias == "buffer", x=moe.experts)
    for name in ("gate", "up") if moe.gated else ("up",):
        yield _make(prefix, "mlp", f"experts.{name}", x=moe.experts, w=moe.width, m=d_model)
        if moe.bias:
            yield _make(prefix, "mlp", f"experts.{name}.bias", x=moe.experts, w=moe.width)
    yield _make(prefix, "mlp", "experts.down", x=moe.experts, m=d_model, w=moe.width)
    if moe.bias:
        yield _make(prefix, "mlp", "experts.down.bias", x=moe.experts, m=d_model)
    if moe.shared_width:
        for name in ("gate", "up") if moe.gated else ("up",):
            yield _make(prefix, "mlp", f"shared.{name}", u=moe.shared_width, m=d_model)
        yield _make(prefix, "mlp", "shared.down", m=d_model, u=moe.shared_width)
        if moe.shared_gate:
            yield _make(prefix, "mlp", "shared_gate", i=1, m=d_model)


def _block(block: Block, d_model: int, prefix: str) -> Iterator[Weight]:
    places = {place: prefix + place + "_norm." for place in block.norm_places}
    for attention in block.attentions:
        name = "self" if attention is block.attention else "cross"
        yield from _attention(attention, f"{prefix}{name}.")
    if block.mlp is not None:
        yield from _mlp(block.mlp, d_model, prefix + "mlp.")
    for place in places.values():
        yield from _norm(block.norm, place, {"m": d_model})


def _stack(stack: Stack, prefix: str) -> Iterator[Weight]:
    width = {"m": stack.d_model}
    if stack.position_rows:
        yield _make(prefix, "embedding", "positions", p=stack.position_rows, **width)
    yield from _norm(stack.embedding_norm, prefix + "embedding_norm.", width)
    if stack.relative_buckets:
        attention = next(a for block in stack.blocks for a in block.attentions)
        yield _make(prefix, "attention", "relative_bias", o=stack.relative_buckets, h=attention.num_heads)
    for index, block in enumerate(stack.blocks):
        yield from _block(block, stack.d_model, f"{prefix}layers.{index}.")
    yield from _norm(stack.final_norm, prefix + "final_norm.", width)
    for other in stack.other:
        yield Weight(prefix + other.name, " ".join("o" * len(other.shape)), other.shape, "other", other.buffer)


def _model(model: StackSpec) -> Iterator[Weight]:
    d_model = model.main.d_model
    if model.vocab_size:
        yield _make("", "embedding", "tokens", l=model.vocab_size, m=d_model)
    if model.token_types:
        yield _make("", "embedding", "token_types", o=model.token_types, m=d_model)
    for stack in model.stacks:
        yield from _stack(stack, stack.role + ".")
    if model.head == "untied":
        yield _make("", "head", "head", l=model.vocab_size, m=d_model)
    if model.head_bias:
        yield _make("", "head", "head.bias", l=model.vocab_size)
    for other in model.other:
        yield Weight(other.name, " ".join("o" * len(other.shape)), other.shape, "other", other.buffer)
