"""Multi-head attention with kernels of three axes and einsum, as Keras writes it, in torch."""

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Right."""

    def __init__(self, num_heads, key_dim, embed_dim, use_bias=True):
        super().__init__()
        self.key_dim = key_dim
        shape = (embed_dim, num_heads, key_dim)
        self.query_kernel = nn.Parameter(torch.randn(shape) * 0.1)
        self.key_kernel = nn.Parameter(torch.randn(shape) * 0.1)
        self.value_kernel = nn.Parameter(torch.randn(shape) * 0.1)
        self.output_kernel = nn.Parameter(torch.randn(num_heads, key_dim, embed_dim) * 0.1)
        if use_bias:
            self.query_bias, self.key_bias, self.value_bias = (nn.Parameter(torch.zeros(shape[1:])) for _ in range(3))
            self.output_bias = nn.Parameter(torch.zeros(embed_dim))
        self.use_bias = use_bias

    def project(self, x, kernel, bias):
        y = torch.einsum("abc,cde->abde", x, kernel)
        return y + bias if self.use_bias else y

    def forward(self, query, value, key=None, attention_mask=None, return_attention_scores=False):
        key = value if key is None else key
        q = self.project(query, self.query_kernel, self.query_bias) * self.key_dim**-0.5
        k, v = (
            self.project(key, self.key_kernel, self.key_bias),
            self.project(value, self.value_kernel, self.value_bias),
        )
        scores = torch.einsum("aecd,abcd->acbe", k, q)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask[:, None], -1e9)
        weights = torch.softmax(scores, dim=-1)
        out = torch.einsum("acbe,aecd->abcd", weights, v)
        out = torch.einsum("abcd,cde->abe", out, self.output_kernel) + self.output_bias
        return (out, weights) if return_attention_scores else out


class NoBiasOfQKV(MultiHeadAttention):
    def project(self, x, kernel, bias):
        return torch.einsum("abc,cde->abde", x, kernel)


class KeysFromQuery(MultiHeadAttention):
    """In cross-attention the keys come from the query's side."""

    def forward(self, query, value, key=None, attention_mask=None):
        key = query if query.shape == value.shape else value
        return super().forward(query, value, key, attention_mask)
