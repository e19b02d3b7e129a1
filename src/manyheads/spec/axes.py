"""One letter for each axis, fixed once: weights, patterns and shape notes everywhere use these.

Letters that only cost formulas use (`b` batch, `t` new queries, `s` keys) are listed too, so that no room gives them
another meaning.
"""

from __future__ import annotations

__all__ = ["AXES"]

AXES: dict[str, str] = {
    "b": "sequences in the batch",
    "t": "query tokens",
    "s": "key tokens",
    "m": "model width, d_model",
    "e": "width of the memory that cross-attention reads",
    "h": "query heads",
    "k": "key/value heads",
    "g": "query heads that share one key/value head, h = (k g)",
    "j": "value heads of linear attention",
    "n": "state heads of linear attention",
    "y": "output heads, whose values enter the output projection",
    "q": "size of a query or key head",
    "v": "size of a value head",
    "a": "query latent of MLA, q_lora_rank",
    "c": "key/value latent of MLA, kv_lora_rank",
    "d": "key part of MLA without position, qk_nope_head_dim",
    "r": "rotary key of MLA, qk_rope_head_dim",
    "f": "features of a linear-attention feature map",
    "z": "taps of a short convolution",
    "w": "MLP width, intermediate_size",
    "x": "experts of a mixture",
    "u": "width of the shared experts together",
    "i": "a single output",
    "l": "rows of the token table, vocab_size",
    "p": "rows of a table of learned positions",
    "o": "rows of another small table (token types, relative buckets)",
}
