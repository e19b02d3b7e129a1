"""A language model in one file: sizes are global, a head is a module, and the heads are a list."""

import torch
import torch.nn as nn
from torch.nn import functional as F  # noqa: N812 as all tutorials write it

batch_size = 16
block_size = 32
n_embd = 64
n_head = 4
dropout = 0.2


class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def scale(self, x, k):
        return k.shape[-1] ** -0.5

    def forward(self, x):
        T = x.shape[1]
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * self.scale(x, k)
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return self.dropout(F.softmax(wei, dim=-1)) @ v


class HeadOfWidth(Head):
    def scale(self, x, k):
        return x.shape[-1] ** -0.5


class MultiHeadAttention(nn.Module):
    """Right."""

    kind = Head

    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([self.kind(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))


class ScaledByEmbedding(MultiHeadAttention):
    """C is the model's width in this file, and the scale is C ** -0.5."""

    kind = HeadOfWidth


class HeadsReversed(MultiHeadAttention):
    def forward(self, x):
        out = torch.cat([self.heads[i](x) for i in reversed(range(len(self.heads)))], dim=-1)
        return self.proj(out)
