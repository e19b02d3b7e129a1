"""Layers and models as text: lossless for a layer, a sketch for a model.

A layer, `gqa(4096, 32/8x128, rope=1e4, window=4096, bias=qkv)`:

    layer     scheme(d_model, heads, option, ...)        scheme: mha, gqa, mqa, mla, linear
    heads     H/KxQ: query heads, key/value heads, head size; mha and mqa write HxQ, mla HxN+R (no-rotation + rotary),
              linear H/KxQ with K its key heads. xQ may be left out where it is d_model/H.
    v=        value head size, else Q (N in mla)
    mla       rank= (needed), q_rank= (else 0, no query latent), norm= (else rms)
    linear    value_heads= (else K), state_heads= (else the larger of both), map=elu+1|identity|relu|learned, features=,
              normalised=no, rule=sum|gated|delta|gated_delta, decay=none|per_head|per_channel,
              beta=none|scalar|per_head, conv=TAPS, norm= (else none)
    positions none, or rope=BASE (with rope_dim= where not the whole head, rope_layout=halves|interleaved,
              rope_scaling=linear(F)|dynamic(F, L)|llama3(F, LOW, HIGH, L)|yarn(F, L, ...)|longrope(L, [..], [..])), or
              alibi, or buckets=N (max_distance=, two_sided). mla turns its R by rope=1e4, interleaved, unless it says
              otherwise.
    mask      causal unless bidirectional, window=KEYS, band=RADIUS or chunk=SIZE
    source    cross=WIDTH (then bidirectional), borrowed=LAYER
    bias=     letters of q, k, v, o
    scale=    else 1/sqrt(head size); softcap=, sinks, gate, qk_norm=rms(scope=full, place=after_rope)
    norm      rms or layer, with (eps=1e-6, gain=w|1+w|none, shift) where they differ; none

A model, `gqa(4096, 32/8x128, rope=5e5) + mlp(14336, gated) x 32; vocab=128256, untied`:

    model     stack; settings                   or encoder: stack; decoder: stack; settings
    stack     group, group, ...                 group: layer, or (group, ...), then x TIMES
    layer     part + part + ...                 part: attention as above, mlp(WIDTH, gated, bias),
              moe(EXPERTS, ACTIVE, WIDTH, shared_width=, ...) by the fields of Mlp and Moe
    settings  vocab=, tied|untied (else untied where there is a vocabulary), untied=no for no head, context=, positions=ROWS, norm= (rms where
              an MLP is given, else none), norms=pre|out|post|pre+out (else pre), final_norm= (as norm unless post),
              embedding_norm=, parallel, token_types=, head_bias, head_softcap=

A number may be written 1e4 where exact. Names may be in either case; what is written twice or not understood is an
error that names the place.
"""

from __future__ import annotations

from manyheads.errors import SpecError
from manyheads.spec.attention import AttentionSpec
from manyheads.spec.attention_text import attention, attention_text
from manyheads.spec.fold import runs
from manyheads.spec.stack import Block, Moe, StackSpec
from manyheads.spec.syntax import Reader

__all__ = ["layer_text", "parse", "parse_stack", "to_text"]


def to_text(spec: AttentionSpec) -> str:
    """The text of a layer, defaults left out: parse(to_text(spec)) == spec."""
    if not isinstance(spec, AttentionSpec):
        raise SpecError(
            f"only an AttentionSpec has a lossless text, found {type(spec).__name__}; JSON writes the others"
        )
    return attention_text(spec)


def parse(text: str) -> AttentionSpec:
    """The layer that `text` describes, by the grammar of this module; a SpecError says where it breaks."""
    reader = Reader(text)
    name = reader.name("a layer, as in gqa(4096, 32/8x128)")
    found = attention(reader.call(name))
    if reader.peek():
        raise reader.error("expected the end after one layer (a whole model is read by parse_stack)")
    return found


def parse_stack(text: str) -> StackSpec:
    """The model that a sketch describes, by the grammar of this module; a SpecError says where it breaks."""
    from manyheads.spec.sketch import model

    return model(Reader(text))


def layer_text(model: StackSpec) -> str:
    """The attention of a model's layers, equal ones folded: `gqa(...) x 80`, `(gqa(..., window=4096), gqa(...)) x 21`.

    A layer without attention is written `mlp` or `moe`; encoder and decoder by name where there are both.
    """
    folded = [_fold([_block_text(block) for block in stack.blocks]) for stack in model.stacks]
    if len(folded) == 1:
        return folded[0]
    return "; ".join(f"{stack.role}: {text}" for stack, text in zip(model.stacks, folded, strict=True))


def _block_text(block: Block) -> str:
    if not block.attentions:
        return "moe" if isinstance(block.mlp, Moe) else "mlp"
    return " + ".join(attention_text(spec) for spec in block.attentions)


def _fold(layers: list[str]) -> str:
    parts = []
    for period, times in runs(layers):
        if times == 1:
            parts.append(", ".join(period))
        elif len(period) == 1:
            parts.append(f"{period[0]} x {times}")
        else:
            parts.append(f"({_fold(list(period))}) x {times}")
    return ", ".join(parts)
