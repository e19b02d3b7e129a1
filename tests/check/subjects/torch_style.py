"""Modules in the style of torch's own: in_proj_weight, masks that block, tokens first or batch first, weights returned."""

import torch
import torch.nn.functional as F  # noqa: N812 as all tutorials write it
from torch import nn
from torch.nn import MultiheadAttention  # noqa: F401 torch's own is put to the checks, too


class PackedAttention(nn.Module):
    """Right: one in_proj_weight, True in a mask blocks, averaged weights come back."""

    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim).uniform_(-0.1, 0.1))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, key_padding_mask=None, need_weights=False, attn_mask=None):
        w, b = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x, w[i], b[i]).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for i, x in enumerate((query, key, value))
        )
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask, -torch.inf)
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None], -torch.inf)
        weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
        out = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        return (out, weights.mean(1)) if need_weights else out


class PaddingOfQueries(PackedAttention):
    """The padding mask is given an axis in the wrong place, and hides queries instead of keys."""

    def forward(self, query, key, value, key_padding_mask=None):
        hidden = (
            None if key_padding_mask is None else key_padding_mask[:, None, :, None].expand(-1, 1, -1, key.shape[1])
        )
        return super().forward(query, key, value, attn_mask=hidden)


class ValuesOfTheQuery(PackedAttention):
    def forward(self, query, key, value):
        return super().forward(query, key, query if query.shape == value.shape else value)
