"""Classic mistakes around the heads, one a class: manyheads check examples/check/wrong_module.py:NoOutputProjection"""

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Right; each class below changes one step of it."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, x):
        b, t, m = x.shape
        return x.view(b, t, self.num_heads, m // self.num_heads).transpose(1, 2)

    def scores(self, q, k):
        return q @ k.mT / q.shape[-1] ** 0.5

    def join(self, heads):
        b, h, t, d = heads.shape
        return heads.transpose(1, 2).reshape(b, t, h * d)

    def project(self, x):
        return self.W_q(x), self.W_k(x), self.W_v(x)

    def forward(self, x):
        q, k, v = map(self.split, self.project(x))
        return self.W_o(self.join(torch.softmax(self.scores(q, k), dim=-1) @ v))


class CutWithoutTranspose(MultiHeadAttention):
    """view(b, heads, t, dim) has the right shape and mixes tokens and heads."""

    def split(self, x):
        b, t, m = x.shape
        return x.view(b, self.num_heads, t, m // self.num_heads)


class JoinedWithoutTranspose(MultiHeadAttention):
    """(b, heads, t, dim) viewed as (b, t, heads x dim)."""

    def join(self, heads):
        b, h, t, d = heads.shape
        return heads.reshape(b, t, h * d)


class NoOutputProjection(MultiHeadAttention):
    """W_o is there, and nobody uses it."""

    def forward(self, x):
        q, k, v = map(self.split, self.project(x))
        return self.join(torch.softmax(self.scores(q, k), dim=-1) @ v)


class ScaledByModelWidth(MultiHeadAttention):
    """sqrt(d_model) instead of sqrt(d_model / heads)."""

    def scores(self, q, k):
        return q @ k.mT / (q.shape[1] * q.shape[-1]) ** 0.5


class CopiedLine(MultiHeadAttention):
    """The line for the keys was copied, and not changed, for the values."""

    def project(self, x):
        return self.W_q(x), self.W_k(x), self.W_k(x)
