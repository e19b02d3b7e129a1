"""Multi-head attention in the style of books that build a language model: widths in and out, a context length, a mask of triu."""

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    """Right."""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        if d_out % num_heads:
            raise ValueError("d_out must be divisible by num_heads")
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def cut(self, x):
        b, num_tokens, _ = x.shape
        return x.view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)

    def weights(self, scores, num_tokens):
        scores = scores.masked_fill(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        return self.dropout(torch.softmax(scores / self.head_dim**0.5, dim=-1))

    def forward(self, x):
        b, num_tokens, _ = x.shape
        keys, queries, values = self.cut(self.W_key(x)), self.cut(self.W_query(x)), self.cut(self.W_value(x))
        weights = self.weights(queries @ keys.transpose(2, 3), num_tokens)
        context = (weights @ values).transpose(1, 2).contiguous().view(b, num_tokens, self.d_out)
        return self.out_proj(context)


class ZerosForMasked(MultiHeadAttention):
    def weights(self, scores, num_tokens):
        scores = scores.masked_fill(self.mask.bool()[:num_tokens, :num_tokens], 0.0)
        return torch.softmax(scores / self.head_dim**0.5, dim=-1)


class OneAhead(MultiHeadAttention):
    def weights(self, scores, num_tokens):
        late = torch.triu(torch.ones(num_tokens, num_tokens), diagonal=2).bool()
        return torch.softmax(scores.masked_fill(late, -torch.inf) / self.head_dim**0.5, dim=-1)


class KeysForQueries(MultiHeadAttention):
    """A line that was copied and not changed: the queries are projected with W_key."""

    def forward(self, x):
        b, num_tokens, _ = x.shape
        keys, queries, values = self.cut(self.W_key(x)), self.cut(self.W_key(x)), self.cut(self.W_value(x))
        weights = self.weights(queries @ keys.transpose(2, 3), num_tokens)
        context = (weights @ values).transpose(1, 2).contiguous().view(b, num_tokens, self.d_out)
        return self.out_proj(context)


class AcrossHeads(MultiHeadAttention):
    """(b, tokens, heads, dim) that is never transposed: the heads of a token attend to each other."""

    def forward(self, x):
        b, num_tokens, _ = x.shape
        shape = (b, num_tokens, self.num_heads, self.head_dim)
        q, k, v = (layer(x).view(shape) for layer in (self.W_query, self.W_key, self.W_value))
        weights = torch.softmax(q @ k.transpose(2, 3) / self.head_dim**0.5, dim=-1)
        return self.out_proj((weights @ v).reshape(b, num_tokens, self.d_out))


class CachedAttention(MultiHeadAttention):
    """Right, with a cache that it keeps: use_cache and reset_cache."""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__(d_in, d_out, context_length, dropout, num_heads, qkv_bias)
        self.reset_cache()

    def reset_cache(self):
        self.cache_k = self.cache_v = None

    def keep(self, keys, values):
        if self.cache_k is not None:
            keys, values = torch.cat((self.cache_k, keys), 1), torch.cat((self.cache_v, values), 1)
        self.cache_k, self.cache_v = keys, values
        return keys, values

    def forward(self, x, use_cache=False):
        b, num_tokens, _ = x.shape
        keys, queries, values = self.W_key(x), self.W_query(x), self.W_value(x)
        if use_cache:
            keys, values = self.keep(keys, values)
        keys, queries, values = self.cut(keys), self.cut(queries), self.cut(values)
        seen = keys.shape[2]
        late = self.mask.bool()[seen - num_tokens : seen, :seen]
        scores = (queries @ keys.transpose(2, 3)).masked_fill(late, -torch.inf)
        context = (
            (torch.softmax(scores / self.head_dim**0.5, dim=-1) @ values)
            .transpose(1, 2)
            .reshape(b, num_tokens, self.d_out)
        )
        return self.out_proj(context)


class CacheOverwritten(CachedAttention):
    def keep(self, keys, values):
        self.cache_k, self.cache_v = keys, values
        return keys, values


class CacheNeverReset(CachedAttention):
    def reset_cache(self):
        if not hasattr(self, "cache_k"):
            self.cache_k = self.cache_v = None
