"""Random valid specs for property tests: every kind, every field, sizes small and seldom square.

`from support.strategies import attention_specs`: H·q is rarely d_model, v rarely q, H/K rarely K, so that a transposed or
confused axis shows. Sizes stay small enough to build the layers for real.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from hypothesis import strategies as st

from manyheads.spec import (
    Alibi,
    AttentionSpec,
    Band,
    Bias,
    Bidirectional,
    Block,
    Borrowed,
    Causal,
    Chunk,
    Cross,
    DynamicScaling,
    Heads,
    Latent,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Mlp,
    Moe,
    NoPositions,
    Norm,
    NoScaling,
    OtherWeight,
    QKNorm,
    RelativeBuckets,
    Rope,
    Self,
    Stack,
    StackSpec,
    State,
    Window,
    YarnScaling,
)
from manyheads.spec.stack import NORM_PLACES

__all__ = ["attention_specs", "blocks", "masks", "models", "norms", "positions", "stacks"]

# Round numbers as configs have them, awkward ones as arithmetic makes them.
numbers = st.sampled_from([1e4, 5e5, 1e6, 1.0, 0.5, 8, 0.1, 1 / 3, 1e-6, 1e-5]) | st.floats(
    min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False
)
numbers_or_zero = numbers | st.just(0.0)
widths = st.integers(1, 24)
contexts = st.integers(1, 2**20)
norms = st.builds(
    Norm,
    kind=st.sampled_from(["rms", "layer"]),
    eps=numbers,
    gain=st.sampled_from(["w", "1+w", "none"]),
    shift=st.booleans(),
)
qk_norms = st.builds(
    QKNorm,
    norm=norms,
    scope=st.sampled_from(["head", "each_head", "full"]),
    place=st.sampled_from(["before_rope", "after_rope"]),
)
masks = st.one_of(
    st.builds(Causal),
    st.builds(Bidirectional),
    st.builds(Window, st.integers(1, 9)),
    st.builds(Band, st.integers(0, 5)),
    st.builds(Chunk, st.integers(1, 9)),
)


def _scalings(dim: int) -> st.SearchStrategy:
    factors = st.lists(numbers, min_size=dim // 2, max_size=dim // 2).map(tuple)
    return st.one_of(
        st.builds(NoScaling),
        st.builds(LinearScaling, numbers),
        st.builds(DynamicScaling, numbers, contexts),
        st.builds(Llama3Scaling, numbers, numbers, numbers, contexts),
        st.builds(
            YarnScaling, numbers, contexts, numbers, numbers, numbers_or_zero, numbers_or_zero, numbers_or_zero, st.booleans()
        ),
        st.builds(LongRopeScaling, contexts, factors, factors, numbers_or_zero),
    )  # fmt: skip


def _ropes(dim: int) -> st.SearchStrategy:
    return st.builds(Rope, st.just(dim), numbers, st.sampled_from(["halves", "interleaved"]), _scalings(dim))


@st.composite
def positions(draw: st.DrawFn, head_dim: int, *, bias: bool = True) -> object:
    """Positions that fit heads of `head_dim`; with `bias`, also those that are biases on logits."""
    choices = [st.builds(NoPositions)]
    if head_dim >= 2:
        choices.append(st.integers(1, head_dim // 2).flatmap(lambda half: _ropes(2 * half)))
    if bias:
        choices.append(st.builds(Alibi))
        choices.append(st.builds(RelativeBuckets, st.integers(2, 40), st.integers(1, 200), st.booleans()))
    return draw(st.one_of(choices))


@st.composite
def _heads(draw: st.DrawFn) -> tuple[int, Heads]:
    kv_heads, group = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    return kv_heads * group, Heads(kv_heads, draw(st.integers(1, 12)), draw(st.integers(1, 12)))


@st.composite
def _latents(draw: st.DrawFn) -> tuple[int, Latent]:
    latent = Latent(
        rank=draw(st.integers(1, 12)),
        nope_dim=draw(st.integers(1, 9)),
        rope_dim=2 * draw(st.integers(0, 3)),
        v_head_dim=draw(st.integers(1, 9)),
        q_rank=draw(st.integers(0, 10)),
        norm=draw(st.none() | norms),
    )
    return draw(st.integers(1, 6)), latent


@st.composite
def _states(draw: st.DrawFn) -> tuple[int, State]:
    keys, values = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    state_heads = lcm(keys, values) * draw(st.integers(1, 2))
    divisors = [n for n in range(1, state_heads + 1) if state_heads % n == 0]
    num_heads = draw(st.sampled_from([*divisors, 2 * state_heads, 3 * state_heads]))
    rule = draw(st.sampled_from(["sum", "gated", "delta", "gated_delta"]))
    feature_map = draw(st.sampled_from(["identity", "elu+1", "relu", "learned"]))
    head_dim = draw(st.integers(1, 9))
    state = State(
        num_key_heads=keys,
        num_value_heads=values,
        num_state_heads=state_heads,
        head_dim=head_dim,
        feature_dim=draw(st.integers(1, 9)) if feature_map == "learned" else head_dim,
        v_head_dim=draw(st.integers(1, 9)),
        feature_map=feature_map,
        normalised=draw(st.booleans()),
        rule=rule,
        decay=draw(st.sampled_from(["per_head", "per_channel"])) if "gated" in rule else "none",
        beta=draw(st.sampled_from(["scalar", "per_head"])) if "delta" in rule else "none",
        conv_width=draw(st.integers(0, 4)),
        norm=draw(st.none() | norms),
    )
    return num_heads, state


_KINDS = {"heads": _heads, "latent": _latents, "state": _states}


@st.composite
def attention_specs(
    draw: st.DrawFn,
    *,
    kinds: tuple[str, ...] = ("heads", "latent", "state"),
    sources: tuple[str, ...] = ("self", "cross", "borrowed"),
    d_model: int | None = None,
    d_memory: int | None = None,
) -> AttentionSpec:
    """A layer whose kv is one of `kinds` and whose source one of `sources`; widths are drawn unless given."""
    source_name = draw(st.sampled_from(sources))
    usable = {
        "self": kinds,
        "cross": [k for k in kinds if k != "state"],
        "borrowed": [k for k in kinds if k == "heads"],
    }
    source_name = source_name if usable[source_name] else "self"
    kind = draw(st.sampled_from(usable[source_name]))
    num_heads, kv = draw(_KINDS[kind]())
    if source_name == "cross":
        source, mask = Cross(d_memory or draw(widths)), Bidirectional()
    else:
        source = Self() if source_name == "self" else Borrowed(draw(st.integers(0, 40)))
        mask = draw(st.sampled_from([Causal(), Bidirectional()]) if kind == "state" else masks)
    if kind == "latent" and kv.rope_dim:
        place = draw(_ropes(kv.rope_dim))
    else:
        place = draw(positions(0 if kind == "latent" else kv.head_dim, bias=kind != "state"))
    bias = draw(st.builds(Bias, *[st.booleans()] * 4))
    return AttentionSpec(
        d_model=d_model or draw(widths),
        num_heads=num_heads,
        kv=kv,
        positions=place,
        mask=mask,
        source=source,
        bias=replace(bias, v=bias.k) if kind == "latent" else bias,
        scale=draw(st.just(kv.head_dim**-0.5) | numbers),
        softcap=draw(st.none() | numbers) if kind != "state" else None,
        sinks=draw(st.booleans()) if kind != "state" else False,
        qk_norm=draw(st.none() | qk_norms) if kind == "heads" else None,
        output_gate=draw(st.booleans()),
    )


_mlps = st.builds(Mlp, widths, gated=st.booleans(), bias=st.booleans())


@st.composite
def _moes(draw: st.DrawFn) -> Moe:
    experts, shared = draw(st.integers(1, 8)), draw(st.integers(0, 9))
    return Moe(
        experts=experts,
        active=draw(st.integers(1, experts)),
        width=draw(widths),
        shared_width=shared,
        gated=draw(st.booleans()),
        bias=draw(st.booleans()),
        router_bias=draw(st.sampled_from(["none", "weight", "buffer"])),
        shared_gate=draw(st.booleans()) if shared else False,
    )


@st.composite
def blocks(
    draw: st.DrawFn,
    *,
    d_model: int | None = None,
    d_memory: int | None = None,
    sources: tuple[str, ...] = ("self", "cross"),
) -> Block:
    """A block whose attentions, MLP and norms may each be absent, but never attention and MLP together."""
    width = d_model or draw(widths)
    wanted = draw(st.lists(st.sampled_from(sources), unique=True, max_size=2))
    attentions = tuple(
        draw(attention_specs(sources=(name,), d_model=width, d_memory=d_memory))
        for name in sorted(wanted, reverse=True)
    )
    norm = draw(st.none() | norms)
    return Block(
        attentions=attentions,
        mlp=draw(_mlps | _moes() if not attentions else st.none() | _mlps | _moes()),
        norm=norm,
        norm_places=draw(st.lists(st.sampled_from(NORM_PLACES), unique=True, min_size=1).map(tuple)) if norm else (),
        parallel=draw(st.booleans()),
    )


_other = st.builds(
    OtherWeight,
    name=st.text(min_size=1, max_size=8),
    shape=st.lists(widths, max_size=3).map(tuple),
    buffer=st.booleans(),
)


def _borrowing(row: list[Block]) -> list[Block]:
    """`row` and a layer more, which borrows from the first layer that keeps keys and values, if there is one."""
    for index, block in enumerate(row):
        lender = block.attention
        if lender is not None and isinstance(lender.kv, Heads):
            return [*row, replace(block, attentions=(replace(lender, source=Borrowed(index)),))]
    return row


@st.composite
def stacks(draw: st.DrawFn, *, role: str | None = None, d_memory: int | None = None) -> Stack:
    """A stack of up to a few dozen layers: a few distinct blocks, repeated in patterns, perhaps a borrowing layer."""
    role = role or draw(st.sampled_from(["encoder", "decoder"]))
    width = draw(widths)
    sources = ("self",) if role == "encoder" else ("self", "cross")
    few = draw(st.lists(blocks(d_model=width, d_memory=d_memory, sources=sources), min_size=1, max_size=3))
    period = draw(st.lists(st.sampled_from(few), min_size=1, max_size=4))
    row = period * draw(st.integers(1, 5)) + draw(st.lists(st.sampled_from(few), max_size=3))
    if draw(st.booleans()):
        row = _borrowing(row)
    attends = any(block.attentions for block in row)
    return Stack(
        role=role,
        d_model=width,
        blocks=tuple(row),
        position_rows=draw(st.integers(0, 30)),
        relative_buckets=draw(st.integers(0, 30)) if attends else 0,
        embedding_norm=draw(st.none() | norms),
        final_norm=draw(st.none() | norms),
        other=draw(st.lists(_other, max_size=2).map(tuple)),
    )


@st.composite
def models(draw: st.DrawFn) -> StackSpec:
    """An encoder, a decoder or both, with or without tokens and head."""
    encoder = draw(st.none() | stacks(role="encoder"))
    decoder = draw(stacks(role="decoder", d_memory=encoder.d_model if encoder else None)) if (
        encoder is None or draw(st.booleans())
    ) else None  # fmt: skip
    vocab = draw(st.integers(0, 99))
    head = draw(st.sampled_from(["none", "tied", "untied"])) if vocab else "none"
    return StackSpec(
        stacks=tuple(stack for stack in (encoder, decoder) if stack is not None),
        vocab_size=vocab,
        head=head,
        head_bias=draw(st.booleans()) if head != "none" else False,
        head_softcap=draw(st.none() | numbers),
        token_types=draw(st.integers(0, 3)),
        context=draw(st.integers(0, 2**20)),
        other=draw(st.lists(_other, max_size=2).map(tuple)),
    )
