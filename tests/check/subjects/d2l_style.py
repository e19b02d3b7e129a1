"""Multi-head attention with valid lengths, heads in the batch axis and lazy layers."""

import math

import torch
from torch import nn


def masked_softmax(X, valid_lens):
    """The last axis of X (batch, queries, keys) beyond valid_lens is left out."""
    if valid_lens is None:
        return nn.functional.softmax(X, dim=-1)
    shape = X.shape
    lens = torch.repeat_interleave(valid_lens, shape[1]) if valid_lens.dim() == 1 else valid_lens.reshape(-1)
    flat = X.reshape(-1, shape[-1])
    keep = torch.arange(shape[-1], device=X.device)[None, :] < lens[:, None]
    return nn.functional.softmax(flat.masked_fill(~keep, -1e6).reshape(shape), dim=-1)


class DotProductAttention(nn.Module):
    """Right, and without weights: a function of q, k and v of one head."""

    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
        self.attention_weights = masked_softmax(scores, valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)


class MultiHeadAttention(nn.Module):
    """Right."""

    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.attention = DotProductAttention(dropout)
        self.W_q = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_k = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_v = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_o = nn.LazyLinear(num_hiddens, bias=bias)

    def forward(self, queries, keys, values, valid_lens):
        queries, keys, values = (
            self.transpose_qkv(layer(x)) for layer, x in ((self.W_q, queries), (self.W_k, keys), (self.W_v, values))
        )
        if valid_lens is not None:
            valid_lens = self.of_heads(valid_lens)
        output = self.attention(queries, keys, values, valid_lens)
        return self.W_o(self.transpose_output(output))

    def of_heads(self, valid_lens):
        return torch.repeat_interleave(valid_lens, repeats=self.num_heads, dim=0)

    def transpose_qkv(self, X):
        X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1).permute(0, 2, 1, 3)
        return X.reshape(-1, X.shape[2], X.shape[3])

    def transpose_output(self, X):
        X = X.reshape(-1, self.num_heads, X.shape[1], X.shape[2]).permute(0, 2, 1, 3)
        return X.reshape(X.shape[0], X.shape[1], -1)


class LengthsTiled(MultiHeadAttention):
    """repeat gives 0, 1, 0, 1 where the heads of one sequence stand together."""

    def of_heads(self, valid_lens):
        return valid_lens.repeat(self.num_heads)


class HeadsNeverTransposed(MultiHeadAttention):
    def transpose_qkv(self, X):
        return X.reshape(X.shape[0] * self.num_heads, X.shape[1], -1)


class JoinedInterleaved(MultiHeadAttention):
    def transpose_output(self, X):
        X = X.reshape(-1, self.num_heads, X.shape[1], X.shape[2]).permute(0, 2, 3, 1)
        return X.reshape(X.shape[0], X.shape[1], -1)
