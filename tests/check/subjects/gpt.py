"""Causal self-attention in the style of small GPTs: a configuration, one fused projection, a buffer for the mask."""

import math

import torch
import torch.nn as nn
from torch.nn import functional as F  # noqa: N812 as all tutorials write it


class CausalSelfAttention(nn.Module):
    """Right."""

    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.dropout = config.dropout
        ones = torch.ones(config.block_size, config.block_size)
        self.register_buffer("bias", torch.tril(ones).view(1, 1, config.block_size, config.block_size))

    def heads(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        return [part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in (q, k, v)]

    def weights(self, q, k):
        T = q.size(2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return self.attn_dropout(F.softmax(att, dim=-1))

    def join(self, y):
        B, h, T, d = y.size()
        return y.transpose(1, 2).contiguous().view(B, T, h * d)

    def forward(self, x):
        q, k, v = self.heads(x)
        return self.resid_dropout(self.c_proj(self.join(self.weights(q, k) @ v)))


class NoScale(CausalSelfAttention):
    def weights(self, q, k):
        T = q.size(2)
        att = (q @ k.transpose(-2, -1)).masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return F.softmax(att, dim=-1)


class MaskInverted(CausalSelfAttention):
    """Fills where the buffer of tril is 1, and so hides the past."""

    def weights(self, q, k):
        T = q.size(2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        return F.softmax(att.masked_fill(self.bias[:, :, :T, :T] == 1, float("-inf")), dim=-1)


class JoinedByView(CausalSelfAttention):
    def join(self, y):
        B, h, T, d = y.size()
        return y.contiguous().view(B, T, h * d)


class NoOutputProjection(CausalSelfAttention):
    def forward(self, x):
        q, k, v = self.heads(x)
        return self.join(self.weights(q, k) @ v)


class DropoutAlways(CausalSelfAttention):
    def weights(self, q, k):
        T = q.size(2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return F.dropout(F.softmax(att, dim=-1), p=self.dropout)


class FusedCutByView(CausalSelfAttention):
    """(B, T, 3 C) viewed as (B, heads, T, 3 d): right shapes, wrong numbers."""

    def heads(self, x):
        B, T, C = x.size()
        return self.c_attn(x).view(B, self.n_head, T, 3 * C // self.n_head).chunk(3, dim=-1)


class SplitInAnotherOrder(CausalSelfAttention):
    """The projection is c_attn, as GPT-2's: query, key, value."""

    def heads(self, x):
        B, T, C = x.size()
        q, v, k = self.c_attn(x).split(self.n_embd, dim=2)
        return [part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in (q, k, v)]
