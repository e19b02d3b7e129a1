"""The cost of one attention layer: its spec's sizes put into the formulas. Branches on the kind of a spec only."""

from __future__ import annotations

from manyheads.cost import formulas
from manyheads.cost.algebra import Number
from manyheads.cost.dtypes import dtype as format_of
from manyheads.cost.pairs import keys_held, visible_pairs
from manyheads.spec.attention import AttentionSpec, Borrowed, Cross
from manyheads.spec.kv import Heads, Latent, State

__all__ = [
    "cache_elements",
    "cache_parts",
    "conv_channels",
    "conv_elements",
    "core_macs",
    "key_token_macs",
    "pair_macs",
    "query_token_macs",
    "read_bytes",
    "read_parts",
    "score_elements",
    "state_elements",
    "state_token_macs",
    "tokens_held",
]


def query_token_macs(spec: AttentionSpec) -> int:
    """MACs of the projections that every new query token needs (for MLA and State: all of a new token's)."""
    kv, gate = spec.kv, spec.d_model * spec.num_output_heads * spec.v_head_dim * spec.output_gate
    if isinstance(kv, Latent):
        macs = formulas.latent_token_macs(
            spec.d_model, spec.num_heads, kv.nope_dim, kv.rope_dim, kv.v_head_dim, kv.rank, kv.q_rank, bool(kv.q_rank)
        )
        return gate + int(macs)
    if isinstance(kv, State):
        return gate + _state_projections(spec, kv)
    return gate + int(formulas.heads_query_macs(spec.d_model, spec.num_heads, kv.head_dim, kv.v_head_dim))


def key_token_macs(spec: AttentionSpec) -> int:
    """MACs of the projections of every new key token: once a memory token in cross-attention, none where borrowed."""
    if not isinstance(spec.kv, Heads) or isinstance(spec.source, Borrowed):
        return 0
    return int(formulas.heads_key_macs(spec.d_source, spec.kv.num_kv_heads, spec.kv.head_dim, spec.kv.v_head_dim))


def _state_projections(spec: AttentionSpec, kv: State) -> int:
    m, q, f, v = spec.d_model, kv.head_dim, kv.feature_dim, kv.v_head_dim
    macs = m * (spec.num_heads * q + kv.num_key_heads * q + kv.num_value_heads * v + spec.num_output_heads * v)
    if kv.feature_map == "learned":
        macs += (spec.num_heads + kv.num_key_heads) * q * f
    macs += kv.conv_width * (spec.num_heads * q + kv.num_key_heads * q + kv.num_value_heads * v)
    macs += m * kv.num_state_heads * {"none": 0, "per_head": 1, "per_channel": f}[kv.decay]
    return macs + m * {"none": 0, "scalar": 1, "per_head": kv.num_state_heads}[kv.beta]


def state_token_macs(spec: AttentionSpec) -> int:
    """MACs a token of a recurrent layer's update and read; 0 for layers that keep a cache."""
    if not isinstance(spec.kv, State):
        return 0
    kv, heads = spec.kv, spec.num_output_heads
    delta = int(kv.beta != "none")
    return int(
        formulas.state_recurrent_macs(
            heads, kv.num_state_heads, kv.feature_dim, kv.v_head_dim, int(kv.normalised), delta
        )
    )


def pair_macs(spec: AttentionSpec, form: str = "expanded") -> int:
    """MACs a visible pair. `form` chooses how MLA runs, "expanded" or "absorbed"; State's is its quadratic form."""
    kv = spec.kv
    if isinstance(kv, Latent):
        if form == "absorbed":
            return int(formulas.absorbed_pair_macs(spec.num_heads, kv.rank, kv.rope_dim))
        return int(formulas.expanded_pair_macs(spec.num_heads, kv.nope_dim, kv.rope_dim, kv.v_head_dim))
    if isinstance(kv, State):
        return int(formulas.state_pair_macs(spec.num_output_heads, kv.feature_dim, kv.v_head_dim))
    return int(formulas.heads_pair_macs(spec.num_heads, kv.head_dim, kv.v_head_dim))


def score_elements(spec: AttentionSpec, batch: Number, queries: Number, keys: Number) -> Number:
    """Elements of one copy of the layer's score matrix as naive code holds it; none in linear attention."""
    heads = 0 if isinstance(spec.kv, State) else spec.num_heads
    return formulas.score_elements(batch, heads, queries, keys)


def cache_elements(spec: AttentionSpec) -> int:
    """Elements that a token adds to the layer's cache: K(q + v), c + r for MLA, 0 for State and for borrowed layers."""
    return sum(cache_parts(spec))


def cache_parts(spec: AttentionSpec) -> tuple[int, int]:
    """`cache_elements` as keys and values apart; MLA's rows, of which values are a part, count as keys."""
    return (0, 0) if isinstance(spec.source, Borrowed) else read_parts(spec)


def read_parts(spec: AttentionSpec) -> tuple[int, int]:
    """Elements of keys and of values that a query reads of each cached token; a borrowing layer reads its lender's."""
    kv = spec.kv
    if isinstance(kv, State):
        return 0, 0
    if isinstance(kv, Latent):
        return int(formulas.latent_cache_elements(kv.rank, kv.rope_dim)), 0
    keys = formulas.heads_cache_elements(kv.num_kv_heads, kv.head_dim, 0)
    return int(keys), int(formulas.heads_cache_elements(kv.num_kv_heads, 0, kv.v_head_dim))


def read_bytes(spec: AttentionSpec, keys: Number, dtype: str) -> Number:
    """Bytes of `keys` cached tokens as our caches keep them and a query reads them: in int8 with a 16-bit scale a token and
    head for keys and for values.
    """
    if dtype == "int8" and isinstance(spec.kv, Heads):
        heads, kv = spec.kv.num_kv_heads, spec.kv
        return keys * sum(formulas.int8_part_bytes(heads, size) for size in (kv.head_dim, kv.v_head_dim))
    return format_of(dtype).bytes(keys * sum(read_parts(spec)))


def state_elements(spec: AttentionSpec) -> int:
    """Elements of the layer's running state a sequence, 0 where there is none; the short convolution's taps apart."""
    kv = spec.kv
    if not isinstance(kv, State):
        return 0
    return int(formulas.state_elements(kv.num_state_heads, kv.feature_dim, kv.v_head_dim, int(kv.normalised)))


def conv_elements(spec: AttentionSpec) -> int:
    """Elements that the short convolution of a linear layer keeps a sequence: its last taps - 1 inputs."""
    kv = spec.kv
    return (kv.conv_width - 1) * conv_channels(spec) if isinstance(kv, State) and kv.conv_width else 0


def conv_channels(spec: AttentionSpec) -> int:
    """Channels of a linear layer's short convolution: queries, keys and values side by side; 0 without one."""
    kv = spec.kv
    if not isinstance(kv, State) or not kv.conv_width:
        return 0
    return (spec.num_heads + kv.num_key_heads) * kv.head_dim + kv.num_value_heads * kv.v_head_dim


def tokens_held(spec: AttentionSpec, tokens: Number, memory: Number = 0) -> Number:
    """Tokens that the layer's cache holds after `tokens` tokens (and `memory` encoder tokens), at best: windows end growth."""
    return memory if isinstance(spec.source, Cross) else keys_held(spec.mask, tokens)


def core_macs(spec: AttentionSpec, queries: Number, keys: Number, form: str = "expanded") -> tuple[Number, Number]:
    """(dense, exact) MACs of QK^T and PV of `queries` new tokens, the last of `keys`; recurrent for State."""
    if isinstance(spec.kv, State):
        macs = queries * state_token_macs(spec)
        return macs, macs
    each = pair_macs(spec, form)
    return queries * keys * each, visible_pairs(spec.mask, queries, keys) * each
