"""Attention in the style of vision transformers with einops: inner width apart from the model's, one projection for all."""

import torch
from einops import rearrange
from torch import einsum, nn


class Attention(nn.Module):
    """Right."""

    def __init__(self, dim, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def split(self, x):
        return (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in self.to_qkv(x).chunk(3, dim=-1))

    def attend(self, q, k, v):
        dots = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        return einsum("b h i j, b h j d -> b h i d", dots.softmax(dim=-1), v)

    def join(self, out):
        return rearrange(out, "b h n d -> b n (h d)")

    def forward(self, x):
        return self.to_out(self.join(self.attend(*self.split(x))))


class DimFirst(nn.Module):
    """Right: rows of the fused projection are (dim, three, heads), a convention of its own."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qvk = nn.Linear(dim, dim * 3, bias=False)
        self.W_0 = nn.Linear(dim, dim, bias=False)

    def forward(self, x, mask=None):
        q, k, v = rearrange(self.to_qvk(x), "b t (d k h) -> k b h t d", k=3, h=self.heads)
        scaled = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        if mask is not None:
            scaled = scaled.masked_fill(mask, float("-inf"))
        out = einsum("b h i j, b h j d -> b h i d", torch.softmax(scaled, dim=-1), v)
        return self.W_0(rearrange(out, "b h t d -> b t (h d)"))


class JoinedDimFirst(Attention):
    def join(self, out):
        return rearrange(out, "b h n d -> b n (d h)")


class SoftmaxOverHeads(Attention):
    def attend(self, q, k, v):
        dots = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        return einsum("b h i j, b h j d -> b h i d", dots.softmax(dim=1), v)


class ValuesByColumns(Attention):
    """The weights meet the values the wrong way round: j is summed where i should be."""

    def attend(self, q, k, v):
        dots = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        return einsum("b h j i, b h j d -> b h i d", dots.softmax(dim=-1), v)
