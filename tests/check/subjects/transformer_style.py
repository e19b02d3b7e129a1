"""Attention with what stands around it in translation models and big decoders: norm and residual, caches by position."""

import torch
import torch.nn.functional as F  # noqa: N812 as all tutorials write it
from torch import nn


class MultiHeadAttention(nn.Module):
    """Right: x is added behind and the sum is normed, which is not attention and is left out."""

    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def scaled(self, q):
        return q / self.d_k**0.5

    def forward(self, q, k, v, mask=None):
        residual = q
        b, n = q.size(0), self.n_head
        q = self.w_qs(q).view(b, q.size(1), n, self.d_k).transpose(1, 2)
        k = self.w_ks(k).view(b, k.size(1), n, self.d_k).transpose(1, 2)
        v = self.w_vs(v).view(b, v.size(1), n, self.d_v).transpose(1, 2)
        attn = torch.matmul(self.scaled(q), k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        attn = self.dropout(F.softmax(attn, dim=-1))
        out = torch.matmul(attn, v).transpose(1, 2).contiguous().view(b, q.size(2), -1)
        return self.layer_norm(self.dropout(self.fc(out)) + residual), attn


class NoScaleBesideResidual(MultiHeadAttention):
    """The residual is there, and the scale is not."""

    def scaled(self, q):
        return q


class SelfAttention(nn.Module):
    """Right: k is the width, and the constructor's flag makes it causal."""

    def __init__(self, k, heads=4, mask=False):
        super().__init__()
        assert k % heads == 0
        self.heads, self.mask = heads, mask
        self.tokeys, self.toqueries, self.tovalues = (nn.Linear(k, k, bias=False) for _ in range(3))
        self.unifyheads = nn.Linear(k, k)

    def forward(self, x):
        b, t, k = x.size()
        h, s = self.heads, k // self.heads
        keys, queries, values = (
            layer(x).view(b, t, h, s).transpose(1, 2).contiguous().view(b * h, t, s)
            for layer in (self.tokeys, self.toqueries, self.tovalues)
        )
        dot = torch.bmm(queries, keys.transpose(1, 2)) / s**0.5
        if self.mask:
            late = torch.triu_indices(t, t, offset=1)
            dot[:, late[0], late[1]] = float("-inf")
        out = torch.bmm(F.softmax(dot, dim=2), values).view(b, h, t, s)
        return self.unifyheads(out.transpose(1, 2).contiguous().view(b, t, s * h))


attention_of_four = SelfAttention(24, 2)


class StartPosition(nn.Module):
    """Right: grouped heads, and a cache inside that is written from a position on."""

    def __init__(self, args):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = args.n_heads, args.n_kv_heads, args.dim // args.n_heads
        if args.dim % args.n_heads:
            raise ValueError(f"{args.dim} is not divided by {args.n_heads}")
        self.wq = nn.Linear(args.dim, self.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(self.n_heads * self.head_dim, args.dim, bias=False)
        shape = (args.max_batch_size, args.max_seq_len, self.n_kv_heads, self.head_dim)
        self.cache_k, self.cache_v = torch.zeros(shape), torch.zeros(shape)

    def forward(self, x, start_pos, mask=None):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        seen = []
        for name, layer in (("cache_k", self.wk), ("cache_v", self.wv)):
            cache = getattr(self, name).to(x)
            cache = cache.index_put(
                (torch.arange(b)[:, None], torch.arange(start_pos, start_pos + t)),
                layer(x).view(b, t, self.n_kv_heads, self.head_dim),
            )
            setattr(self, name, cache.detach())
            seen.append(
                cache[:b, : start_pos + t].repeat_interleave(self.n_heads // self.n_kv_heads, 2).transpose(1, 2)
            )
        scores = q @ seen[0].transpose(2, 3) / self.head_dim**0.5
        if mask is not None:
            scores = scores + mask
        weights = F.softmax(scores.float(), dim=-1).type_as(q)
        return self.wo((weights @ seen[1]).transpose(1, 2).reshape(b, t, -1))
