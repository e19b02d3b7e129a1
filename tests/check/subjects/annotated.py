"""Multi-headed attention in the style of annotated papers: clones of one Linear, a function for the attention, a mask."""

import copy
import math

import torch
import torch.nn as nn


def clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


def attention(query, key, value, mask=None, dropout=None):
    """Right. softmax(Q K^T / sqrt(d_k)) V"""
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    """Right."""

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        assert d_model % h == 0
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def attend(self, query, key, value, mask):
        return attention(query, key, value, mask=mask, dropout=self.dropout)

    def project(self, query, key, value):
        nbatches = query.size(0)
        return [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        ]

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        x, self.attn = self.attend(*self.project(query, key, value), mask)
        x = x.transpose(1, 2).contiguous().view(query.size(0), -1, self.h * self.d_k)
        return self.linears[-1](x)


class ScaledByModelWidth(MultiHeadedAttention):
    def attend(self, query, key, value, mask):
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.h * self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = scores.softmax(dim=-1)
        return torch.matmul(weights, value), weights


class MaskAfterSoftmax(MultiHeadedAttention):
    def attend(self, query, key, value, mask):
        weights = (torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)).softmax(dim=-1)
        if mask is not None:
            weights = weights.masked_fill(mask == 0, 0.0)
        return torch.matmul(weights, value), weights


class OneLinearForAll(MultiHeadedAttention):
    """linears[0] projects query, key and value."""

    def project(self, query, key, value):
        nbatches = query.size(0)
        return [self.linears[0](x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2) for x in (query, key, value)]


class SoftmaxOverQueries(MultiHeadedAttention):
    def attend(self, query, key, value, mask):
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = scores.softmax(dim=-2)
        return torch.matmul(weights, value), weights
