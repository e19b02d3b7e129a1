"""A module with projections, checked through a function: manyheads check examples/check/right_module.py:heads_of_module

The checks speak of q, k and v. A module that makes them itself is given projections that pass its input through, and
the function puts q, k and v side by side into that input: what comes out is the module's attention alone.
"""

import torch
from torch import nn

MANYHEADS_CHECK = {"no": ["cross", "float64", "float16", "bfloat16"]}


class SelfAttention(nn.Module):
    """Multi-head self-attention as in many a course."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, causal=False):
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(diagonal=1)
            scores = scores.masked_fill(later, -torch.inf)
        return self.out(self.join(torch.softmax(scores, dim=-1) @ v))

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def join(self, x):
        return x.transpose(1, 2).flatten(2)


def heads_of_module(q, k, v, num_heads, causal=False):
    """The heads of a SelfAttention on q, k, v of shape (batch, tokens, num_heads x dim), as many queries as keys."""
    width = q.shape[-1]
    module = SelfAttention(3 * width, num_heads)
    with torch.no_grad():
        for rows, part in zip(module.qkv.weight.chunk(3), range(3), strict=True):
            rows.zero_()
            for head in range(num_heads):  # each head of 3·dim numbers gets the dim numbers that are meant for it
                take = width // num_heads
                rows[3 * take * head : 3 * take * head + take, part * width + take * head :][:, :take] = torch.eye(take)
            if part == 0:
                rows.mul_(3**0.5)  # its heads are three times as wide, and so is its scale
        module.out.weight.copy_(torch.eye(3 * width))
    y = module(torch.cat((q, k, v), dim=-1), causal=causal)
    return y.unflatten(-1, (num_heads, 3, -1))[:, :, :, 0].flatten(2)
