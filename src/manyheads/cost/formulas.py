"""The closed forms of attention's cost on bare sizes, one function a formula [facts: F6, F10, F12, F31, F43].

Symbols: m d_model, e width of the source of keys and values (= m in self-attention), H query heads, K key/value heads,
q and v sizes of a query/key and a value head, n and r the parts of an MLA key without and with position, c and a its
key/value and query latents (a = 0 for none), H_s state heads, f features, P visible pairs, S cached tokens, B sequences.
Every argument may be an int, an object or float64 array, or a symbol; nothing branches on a size. MACs are
multiply-accumulates; FLOPs = 2 · MACs. Softmax, masks, norms and rotations are not counted as MACs.
"""

from __future__ import annotations

from manyheads.cost.algebra import Number

__all__ = [
    "absorbed_pair_macs",
    "absorption_crossover_queries",
    "core_intensity",
    "expanded_pair_macs",
    "expanded_tokens_macs",
    "flops",
    "heads_cache_elements",
    "heads_key_macs",
    "heads_pair_macs",
    "heads_query_macs",
    "int8_part_bytes",
    "latent_cache_elements",
    "latent_core_intensity",
    "latent_token_macs",
    "mlp_macs",
    "score_elements",
    "state_chunked_macs",
    "state_core_intensity",
    "state_elements",
    "state_pair_macs",
    "state_recurrent_macs",
    "training_macs",
]


def flops(macs: Number) -> Number:
    """FLOPs = 2 · MACs."""
    return 2 * macs


def training_macs(forward_macs: Number) -> Number:
    """Forward + backward = 3 · forward (the backward pass costs twice the forward one); recomputation not counted."""
    return 3 * forward_macs


def heads_query_macs(m: Number, H: Number, q: Number, v: Number) -> Number:
    """m·H·q + H·v·m: projections a query token needs, W_q and W_o."""
    return m * H * q + H * v * m


def heads_key_macs(e: Number, K: Number, q: Number, v: Number) -> Number:
    """e·K·(q + v): projections a key token needs, W_k and W_v."""
    return e * K * (q + v)


def heads_pair_macs(H: Number, q: Number, v: Number) -> Number:
    """H·(q + v) a visible pair: QK^T and PV. There is no K in it."""
    return H * (q + v)


def heads_cache_elements(K: Number, q: Number, v: Number) -> Number:
    """K·(q + v) a token and layer."""
    return K * (q + v)


def int8_part_bytes(K: Number, d: Number) -> Number:
    """K·(d + 2) a token and layer: keys (d = q) or values (d = v) in one byte an element, and a 16-bit scale a head."""
    return K * (d + 2)


def score_elements(B: Number, H: Number, queries: Number, keys: Number) -> Number:
    """B·H·T_q·T_k: one copy of the score matrix of a layer, whatever K and q are."""
    return B * H * queries * keys


def latent_token_macs(
    m: Number, H: Number, n: Number, r: Number, v: Number, c: Number, a: Number, has_q_latent: int
) -> Number:
    """W_q + m·(c + r) + c·H·(n + v) + H·v·m a new token, expanded and absorbed alike.

    W_q = m·a + a·H·(n + r) with a query latent (`has_q_latent` 1), m·H·(n + r) without (0): a kind, not a size.
    """
    query = m * a + a * H * (n + r) if has_q_latent else m * H * (n + r)
    return query + m * (c + r) + c * H * (n + v) + H * v * m


def expanded_pair_macs(H: Number, n: Number, r: Number, v: Number) -> Number:
    """H·(n + r + v) a pair: MLA with keys and values of every head expanded."""
    return H * (n + r + v)


def absorbed_pair_macs(H: Number, c: Number, r: Number) -> Number:
    """H·(2c + r) a pair: MLA that scores and mixes the latents themselves."""
    return H * (2 * c + r)


def expanded_tokens_macs(S: Number, H: Number, n: Number, v: Number, c: Number) -> Number:
    """S·c·H·(n + v): expanding a latent cache of S tokens again, the naive trap of a decode step."""
    return S * c * H * (n + v)


def latent_cache_elements(c: Number, r: Number) -> Number:
    """c + r a token and layer: one latent and one rotary key for all heads."""
    return c + r


def absorption_crossover_queries(n: Number, v: Number, c: Number) -> Number:
    """c(n + v) / (2c - n - v): below so many queries over a long latent cache, absorbing beats expanding."""
    return c * (n + v) / (2 * c - n - v)


def state_recurrent_macs(H: Number, H_s: Number, f: Number, v: Number, normalised: int, delta: int) -> Number:
    """H_s·f·v (update) + H·f·v (read) + H·f where normalised + H_s·f·v where a delta rule reads before it writes."""
    return H_s * f * v * (1 + delta) + H * f * v + H * f * normalised


def state_pair_macs(H: Number, f: Number, v: Number) -> Number:
    """H·(f + v) a pair: linear attention written as a masked product."""
    return H * (f + v)


def state_chunked_macs(
    chunks: Number, C: Number, H: Number, H_s: Number, f: Number, v: Number, normalised: int
) -> Number:
    """A chunk of C: H(f + v)·C(C + 1)/2 inside, (H + H_s)·C·f·v across, H·C·f for the normaliser; times the chunks."""
    return chunks * (H * (f + v) * (C * (C + 1) // 2) + (H + H_s) * C * f * v + H * C * f * normalised)


def state_elements(H_s: Number, f: Number, v: Number, normalised: int) -> Number:
    """H_s·(f·v + f) a sequence and layer, whatever its length; without + f where not normalised."""
    return H_s * (f * v + f * normalised)


def mlp_macs(m: Number, width: Number, matrices: int) -> Number:
    """matrices · m · width a token: 3 where gated, else 2."""
    return matrices * m * width


def core_intensity(g: Number, queries: Number, cache_element_bytes: Number) -> Number:
    """2·g·T_q / b_c FLOPs a byte read: g = H/K query heads share each key and value (16-bit, one query: exactly g)."""
    return 2 * g * queries / cache_element_bytes


def latent_core_intensity(H: Number, c: Number, r: Number, cache_element_bytes: Number) -> Number:
    """2·H(2c + r) / ((c + r)·b_c) FLOPs a byte: absorbed decode, 241.8 for DeepSeek-V3 in 16 bits."""
    return 2 * absorbed_pair_macs(H, c, r) / (latent_cache_elements(c, r) * cache_element_bytes)


def state_core_intensity(H: Number, H_s: Number, state_element_bytes: Number) -> Number:
    """(1 + H/H_s) / b_s FLOPs a byte: each state is read and written once a token."""
    return (1 + H / H_s) / state_element_bytes
