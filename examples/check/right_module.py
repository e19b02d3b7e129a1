"""Multi-head attention that passes every check: manyheads check examples/check/right_module.py:MultiHeadAttention

What it takes is what the checks know of: fewer key/value heads, a memory, a mask (True = may attend), padding, a causal flag, a
cache that is given and returned; and it returns the weights when asked.
"""

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """y = concat(head_1, ..., head_h) W_o, head_i = softmax(q_i k_j^T / sqrt(d)) v_j with j = i // (h/k)."""

    def __init__(self, d_model, num_heads, num_kv_heads=None, head_dim=None, dropout=0.0, bias=True):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        if d_model % num_heads and head_dim is None:
            raise ValueError(f"a width of {d_model} cannot be cut into {num_heads} heads evenly")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} key/value heads evenly")
        self.head_dim, self.dropout = head_dim or d_model // num_heads, dropout
        self.W_q = nn.Linear(d_model, self.num_heads * self.head_dim, bias=bias)
        self.W_k = nn.Linear(d_model, self.num_kv_heads * self.head_dim, bias=bias)
        self.W_v = nn.Linear(d_model, self.num_kv_heads * self.head_dim, bias=bias)
        self.W_o = nn.Linear(self.num_heads * self.head_dim, d_model, bias=bias)

    def forward(
        self, x, memory=None, *, visible=None, key_padding_mask=None, causal=False, past=None, use_cache=False,
        need_weights=False,
    ):  # fmt: skip
        """x (b, t, m), memory (b, s, m) or None for x; visible broadcasts to (b, h, t, s); key_padding_mask (b, s), True = keep."""
        source = x if memory is None else memory
        q = self.split(self.W_q(x), self.num_heads)
        k, v = self.split(self.W_k(source), self.num_kv_heads), self.split(self.W_v(source), self.num_kv_heads)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        kept = (k, v) if use_cache else None
        weights = self.weights(q, k, self.seen(q, k, visible, key_padding_mask, causal))
        group = self.num_heads // self.num_kv_heads
        mixed = nn.functional.dropout(weights, self.dropout, self.training) @ v.to(weights.dtype).repeat_interleave(group, 1)
        y = self.W_o(mixed.to(x.dtype).transpose(1, 2).flatten(2))
        extra = (*([weights.to(x.dtype)] if need_weights else []), *([kept] if use_cache else []))
        return (y, *extra) if extra else y

    def split(self, x, heads):
        """(b, t, heads x dim) to (b, heads, t, dim)."""
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def seen(self, q, k, visible, keep, causal):
        """Who may see whom; the queries are the last tokens, for with a cache there are more keys."""
        queries, keys = q.shape[2], k.shape[2]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
        if causal:
            seen = seen.tril(keys - queries)
        if visible is not None:
            seen = seen & visible
        return seen if keep is None else seen & keep[:, None, None, :]

    def weights(self, q, k, seen):
        """Softmax in float32 at least; a row that sees nothing is zeros."""
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        k = k.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
        scores = (q.to(wide) @ k.to(wide).mT / self.head_dim**0.5).masked_fill(~seen, -torch.inf)
        if not scores.shape[-1]:
            return scores
        powers = torch.exp(scores - scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(wide).min))
        total = powers.sum(-1, keepdim=True)
        return powers / total.masked_fill(total == 0, 1)
