"""What if the same model had other heads: `gqa:8`, `mla:512+64`, `window:4096`, several joined with commas.

A change touches every attention of the generating stack (the decoder, or a lone encoder) and one field alone: `heads:16`
keeps the head size and `head-dim:32` the count, so that `heads:16,head-dim:32` is a row of the 2017 paper's head
study. Of joined changes only what comes out in the end must be a layer: `heads:10,gqa:2` and `gqa:2,heads:10` are the same. It
is a price of another model, not a conversion: nothing here says what quality it would have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from manyheads.errors import SpecError
from manyheads.quoting import shown
from manyheads.spec.attention import AttentionSpec, Borrowed, Cross, Self
from manyheads.spec.kv import Heads, Latent, State
from manyheads.spec.masks import Causal, Chunk, Window
from manyheads.spec.positions import Alibi, LongRopeScaling, NoPositions, NoScaling, RelativeBuckets, Rope
from manyheads.spec.stack import Block, StackSpec

__all__ = ["VALID", "what_if"]

VALID = ("mha", "gqa:N", "mqa", "mla:RANK+ROPE", "window:N", "linear", "heads:N", "head-dim:N")

Change = Callable[[AttentionSpec], AttentionSpec]


def what_if(model: StackSpec, text: str) -> StackSpec:
    """`model` with the changes that `text` names, joined with commas, applied from left to right; but heads first, since
    key/value heads and states may follow them, and a window last.

    Raises SpecError where the text is not understood, and where a layer that comes out contradicts itself.
    """
    if not isinstance(text, str):
        raise SpecError(f"what_if= is a text, found {shown(text)}; valid: {', '.join(VALID)}, joined with commas")
    parts = [part.strip() for part in text.split(",")]
    ranked = sorted(parts, key=lambda part: part.startswith("window:") - part.startswith("heads:"))
    changes = [_parse(part, text) for part in ranked]
    cache: dict[AttentionSpec, AttentionSpec] = {}

    def changed(spec: AttentionSpec) -> AttentionSpec:
        if spec not in cache:
            out = spec
            for change in changes:
                out = change(out)
            cache[spec] = _checked(out, text)
        return cache[spec]

    blocks: dict[Block, Block] = {
        block: replace(block, attentions=tuple(changed(a) for a in block.attentions)) for block, _ in model.main.groups
    }
    main = replace(model.main, blocks=tuple(blocks[block] for block in model.main.blocks))
    return replace(model, stacks=tuple(main if stack is model.main else stack for stack in model.stacks))


def _altered(spec: AttentionSpec, **fields: Any) -> AttentionSpec:
    """`spec` with other fields, unchecked: what one change leaves may be a layer only after the next."""
    made = object.__new__(AttentionSpec)
    made.__dict__.update({name: fields.get(name, getattr(spec, name)) for name in AttentionSpec.__dataclass_fields__})
    return made


def _checked(spec: AttentionSpec, text: str) -> AttentionSpec:
    try:
        return replace(spec)
    except SpecError as error:
        raise SpecError(f"what_if={shown(text)}: {error}") from None


def _parse(part: str, whole: str) -> Change:
    name, _, argument = part.partition(":")
    if name in _PLAIN and not argument:
        return _PLAIN[name]
    number = _number(argument)
    if name in _NUMBERED and number:
        return lambda spec: _NUMBERED[name](spec, number)
    if name == "mla":
        rank, plus, rope = argument.partition("+")
        if _number(rank) and plus and (rope == "0" or _number(rope)):
            return lambda spec: _mla(spec, _number(rank), _number(rope))
    raise SpecError(
        f"what_if={shown(whole)}: {shown(part)} is not understood; valid: {', '.join(VALID)}, joined with commas"
    )


def _number(text: str) -> int:
    """The number of 1 or more that `text` writes, 0 for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else 0


def _as_heads(spec: AttentionSpec, num_kv_heads: int) -> AttentionSpec:
    """Any scheme as heads: MLA's expanded, a State's with its own sizes."""
    kv = Heads(num_kv_heads, spec.head_dim, spec.v_head_dim)
    if isinstance(spec.kv, Latent):
        bias = replace(spec.bias, k=False, v=False)
        return _altered(spec, kv=kv, bias=bias)
    return _altered(spec, kv=kv)


def _mha(spec: AttentionSpec) -> AttentionSpec:
    return _as_heads(spec, spec.num_heads)


def _gqa(spec: AttentionSpec, num_kv_heads: int) -> AttentionSpec:
    return _as_heads(spec, num_kv_heads)


def _mqa(spec: AttentionSpec) -> AttentionSpec:
    return _as_heads(spec, 1)


def _mla(spec: AttentionSpec, rank: int, rope_dim: int) -> AttentionSpec:
    """DeepSeek's form: each head keeps its size as the part without position, and a shared rotary key joins it."""
    if isinstance(spec.source, Cross):
        return spec  # a memory has no positions to rotate; MLA is a form of self-attention
    nope = spec.kv.nope_dim if isinstance(spec.kv, Latent) else spec.head_dim
    q_rank = spec.kv.q_rank if isinstance(spec.kv, Latent) else 0
    latent = Latent(rank, nope, rope_dim, spec.v_head_dim, q_rank)
    base = spec.positions.base if isinstance(spec.positions, Rope) else 10000.0
    positions = Rope(rope_dim, base, "interleaved") if rope_dim else NoPositions()
    source = Self() if isinstance(spec.source, Borrowed) else spec.source
    bias = replace(spec.bias, k=False, v=False)
    return _altered(
        spec, kv=latent, positions=positions, source=source, bias=bias, qk_norm=None, scale=latent.head_dim**-0.5
    )


def _window(spec: AttentionSpec, keys: int) -> AttentionSpec:
    return _altered(spec, mask=Window(keys)) if isinstance(spec.mask, Causal | Window | Chunk) else spec


def _linear(spec: AttentionSpec) -> AttentionSpec:
    """Linear attention (elu + 1, normalised) with the same heads; what acts on a softmax falls away."""
    if isinstance(spec.source, Cross) or isinstance(spec.kv, State):
        return spec
    kv_heads = spec.kv.num_kv_heads if isinstance(spec.kv, Heads) else spec.num_heads
    state = State(kv_heads, kv_heads, kv_heads, spec.head_dim, spec.head_dim, spec.v_head_dim)
    mask = Causal() if isinstance(spec.mask, Causal | Window | Chunk) else spec.mask
    positions = NoPositions() if isinstance(spec.positions, Alibi | RelativeBuckets) else spec.positions
    return _altered(
        spec, kv=state, mask=mask, positions=positions, source=Self(), softcap=None, sinks=False, qk_norm=None
    )


def _heads(spec: AttentionSpec, num_heads: int) -> AttentionSpec:
    """Another number of query heads, each as large as before; MHA stays MHA, other schemes keep their K."""
    kv = spec.kv
    if isinstance(kv, Heads) and kv.num_kv_heads == spec.num_heads:
        kv = replace(kv, num_kv_heads=num_heads)
    return _altered(spec, num_heads=num_heads, kv=kv)


def _head_dim(spec: AttentionSpec, head_dim: int) -> AttentionSpec:
    """Another size of every head, values in proportion to queries where they differ."""
    kv = spec.kv
    if isinstance(kv, Latent):
        if head_dim <= kv.rope_dim:
            raise SpecError(f"head-dim {head_dim} must exceed the rotary part {kv.rope_dim} of MLA's heads")
        return _altered(spec, kv=replace(kv, nope_dim=head_dim - kv.rope_dim), scale=head_dim**-0.5)
    v_head_dim = max(1, kv.v_head_dim * head_dim // kv.head_dim)
    if isinstance(kv, State):
        feature_dim = kv.feature_dim if kv.feature_map == "learned" else head_dim
        kv = replace(kv, head_dim=head_dim, feature_dim=feature_dim, v_head_dim=v_head_dim)
    else:
        kv = replace(kv, head_dim=head_dim, v_head_dim=v_head_dim)
    scale = head_dim**-0.5 if spec.scale == spec.head_dim**-0.5 else spec.scale
    return _altered(spec, kv=kv, positions=_resized(spec, head_dim), scale=scale)


def _resized(spec: AttentionSpec, head_dim: int) -> NoPositions | Rope | Alibi | RelativeBuckets:
    """Rotary positions of the same share of the new head; LongRoPE's lists fit one size only and fall away."""
    rope = spec.positions
    if not isinstance(rope, Rope):
        return rope
    dim = head_dim * rope.dim // spec.head_dim // 2 * 2
    if not dim:
        return NoPositions()
    scaling = NoScaling() if isinstance(rope.scaling, LongRopeScaling) else rope.scaling
    return replace(rope, dim=dim, scaling=scaling)


_PLAIN: dict[str, Change] = {"mha": _mha, "mqa": _mqa, "linear": _linear}
_NUMBERED: dict[str, Callable[[AttentionSpec, int], AttentionSpec]] = {
    "gqa": _gqa,
    "window": _window,
    "heads": _heads,
    "head-dim": _head_dim,
}
