"""Attention in more of the styles that are met: one head, heads apart in the weights, tokens first, sizes of other names."""

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 as all tutorials write it
from torch import nn


class OneHead(nn.Module):
    """Right: one head needs no join, and has no W_o."""

    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_in, d_out, bias=qkv_bias) for _ in range(3))

    def forward(self, x):
        keys, queries, values = self.W_key(x), self.W_query(x), self.W_value(x)
        return torch.softmax(queries @ keys.transpose(-2, -1) / keys.shape[-1] ** 0.5, dim=-1) @ values


class HeadsApart(nn.Module):
    """Right: weights (heads, width, head), a configuration, causal."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        shape = (cfg.n_heads, cfg.d_model, cfg.d_head)
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.empty(shape)) for _ in range(3))
        self.W_O = nn.Parameter(torch.empty(cfg.n_heads, cfg.d_head, cfg.d_model))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.zeros(cfg.n_heads, cfg.d_head)) for _ in range(3))
        self.b_O = nn.Parameter(torch.zeros(cfg.d_model))

    def forward(self, resid):
        q, k, v = (
            torch.einsum("bpm,nmh->bpnh", resid, w) + b
            for w, b in ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
        )
        scores = torch.einsum("bqnh,bknh->bnqk", q, k) / self.cfg.d_head**0.5
        late = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        z = torch.einsum("bnqk,bknh->bqnh", scores.masked_fill(late, -torch.inf).softmax(-1), v)
        return torch.einsum("bqnh,nhm->bqm", z, self.W_O) + self.b_O


class TokensFirst(nn.Module):
    """Right: (tokens, batch, width), keywords only, a mask (queries, keys, batch)."""

    def __init__(self, heads, d_model, dropout_prob=0.1):
        super().__init__()
        self.heads, self.d_k = heads, d_model // heads
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
        self.output = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout_prob)

    def forward(self, *, query, key, value, mask=None):
        if mask is not None and (mask.shape[0] not in (1, query.shape[0]) or mask.shape[1] != key.shape[0]):
            raise ValueError(f"a mask of {tuple(mask.shape)}")
        q, k, v = (
            layer(x).view(*x.shape[:2], self.heads, self.d_k)
            for layer, x in ((self.query, query), (self.key, key), (self.value, value))
        )
        scores = torch.einsum("ibhd,jbhd->ijbh", q, k) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(-1) == 0, float("-inf"))
        x = torch.einsum("ijbh,jbhd->ibhd", self.dropout(scores.softmax(dim=1)), v)
        return self.output(x.reshape(*query.shape))


class SizesOfOtherNames(nn.Module):
    """Right: torch's own function with its flag, which starts at the top-left corner where memories are longer."""

    def __init__(self, E_q, E_k, E_v, E_total, nheads, bias=True):
        super().__init__()
        self.nheads = nheads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(e, E_total, bias=bias) for e in (E_q, E_k, E_v))
        self.out_proj = nn.Linear(E_total, E_q, bias=bias)

    def forward(self, query, key, value, attn_mask=None, is_causal=False):
        q, k, v = (
            layer(x).unflatten(-1, (self.nheads, -1)).transpose(1, 2)
            for layer, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)
        return self.out_proj(out.transpose(1, 2).flatten(-2))


class ReturnsScores(nn.Module):
    """Right: what comes back beside the output are raw scores, and half of the scale is in q and half in k."""

    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.query, self.value, self.out = (nn.Linear(n_state, n_state) for _ in range(3))
        self.key = nn.Linear(n_state, n_state, bias=False)

    def forward(self, x, xa=None, mask=None, kv_cache=None):
        source = x if xa is None else xa
        b, n, s = x.shape
        scale = (s // self.n_head) ** -0.25
        q = self.query(x).view(b, n, self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = self.key(source).view(b, source.shape[1], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = self.value(source).view(b, source.shape[1], self.n_head, -1).permute(0, 2, 1, 3)
        scores = q @ k if mask is None else q @ k + mask[:n, :n]
        return self.out((scores.softmax(-1) @ v).permute(0, 2, 1, 3).flatten(start_dim=2)), scores.detach()


class WeightsInADict:
    """Right, in numpy, and without a call of its own: forward."""

    def __init__(self, embed_size, heads):
        self.heads, rng = heads, np.random.RandomState(0)
        self.params = {name: rng.randn(embed_size, embed_size) for name in ("Wq", "Wk", "Wv", "Wo")}

    def forward(self, x):
        b, t, m = x.shape
        q, k, v = ((x @ self.params[name]).reshape(b, t, self.heads, -1).swapaxes(1, 2) for name in ("Wq", "Wk", "Wv"))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(m // self.heads)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = weights / weights.sum(-1, keepdims=True) @ v
        return out.swapaxes(1, 2).reshape(b, t, m) @ self.params["Wo"]


def any_order(W_o, W_v, W_k, W_q, x, n_heads, causal=True):
    """Right."""
    b, t, m = x.shape
    q, k, v = ((x @ W).reshape(b, t, n_heads, -1).transpose(1, 2) for W in (W_q, W_k, W_v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores + torch.full((t, t), float("-inf")).triu(1)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, m) @ W_o


class Plain(nn.Module):
    """Right; what follows changes a step of it."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, self.d = num_heads, d_model // num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def keys(self, x):
        return self.cut(self.W_k(x))

    def cut(self, x):
        b, t, m = x.shape
        return x.view(b, t, self.h, m // self.h).transpose(1, 2)

    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / math.sqrt(self.d)

    def weights(self, scores):
        return scores.softmax(-1)

    def forward(self, x):
        b, t, m = x.shape
        weights = self.weights(self.scores(self.cut(self.W_q(x)), self.keys(x)))
        return self.W_o((weights @ self.cut(self.W_v(x))).transpose(1, 2).reshape(b, t, m))


class KeysViewed(Plain):
    def scores(self, q, k):
        return q @ k.reshape(*k.shape[:2], k.shape[3], k.shape[2]) / math.sqrt(self.d)


class SoftmaxTwice(Plain):
    def weights(self, scores):
        return scores.softmax(-1).softmax(-1)


class SigmoidForSoftmax(Plain):
    def weights(self, scores):
        return torch.sigmoid(scores)


class ScaleUpsideDown(Plain):
    def scores(self, q, k):
        return q @ k.transpose(-2, -1) * math.sqrt(self.d)


class KeysAloneByView(Plain):
    def keys(self, x):
        b, t, m = x.shape
        return self.W_k(x).view(b, self.h, t, m // self.h)


class CausalButForgotten(Plain):
    """masked_fill makes a new tensor, and nobody keeps it: only the name says causal."""

    def weights(self, scores):
        scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
        return scores.softmax(-1)


class NoOutputLayer(nn.Module):
    """There is no W_o at all, though there are heads."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def one_too_long(queries, keys, values, valid_lens=None):
    scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
    if valid_lens is not None:
        late = torch.arange(keys.shape[1])[None, None] > valid_lens[:, None, None]
        scores = scores.masked_fill(late, -1e6)
    return scores.softmax(-1) @ values


class ValuesKeptAsKeys(Plain):
    """The cache holds keys where the values should be."""

    def forward(self, x, past=None, use_cache=False):
        b, t, m = x.shape
        q, k, v = self.cut(self.W_q(x)), self.keys(x), self.cut(self.W_v(x))
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[0], v), 2)
        late = torch.ones(t, k.shape[2]).triu(1 + k.shape[2] - t).bool()
        weights = self.scores(q, k).masked_fill(late, float("-inf")).softmax(-1)
        return self.W_o((weights @ v).transpose(1, 2).reshape(b, t, m)), (k, v) if use_cache else None


class OneKeyValueHead(nn.Module):
    """Right: one key/value head for all query heads, and no number of them."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.d = n_heads, d_model // n_heads
        self.q, self.kv, self.o = (
            nn.Linear(d_model, d_model),
            nn.Linear(d_model, 2 * self.d),
            nn.Linear(d_model, d_model),
        )

    def forward(self, x):
        b, t, m = x.shape
        q, (k, v) = self.q(x).view(b, t, self.h, self.d).transpose(1, 2), self.kv(x).chunk(2, -1)
        weights = torch.softmax(q @ k[:, None].mT / self.d**0.5, -1)
        return self.o((weights @ v[:, None]).transpose(1, 2).reshape(b, t, m))


class NormedFirst(nn.Module):
    """Right: x is normed before it is projected, and where one head is as wide as x there is no W_o."""

    def __init__(self, dim, heads=8, dim_head=64):
        super().__init__()
        inner = dim_head * heads
        self.heads, self.norm, self.to_qkv = heads, nn.LayerNorm(dim), nn.Linear(dim, inner * 3, bias=False)
        self.to_out = (
            nn.Identity() if heads == 1 and dim_head == dim else nn.Sequential(nn.Linear(inner, dim), nn.Dropout(0.0))
        )

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(self.norm(x)).chunk(3, -1))
        out = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v
        return self.to_out(out.transpose(1, 2).flatten(2))


class Stacked(nn.Module):
    """Right: one array of three matrices, and x @ W for all."""

    def __init__(self, width, n_head):
        super().__init__()
        self.h, self.w, self.wo = (
            n_head,
            nn.Parameter(torch.randn(3, width, width)),
            nn.Parameter(torch.randn(width, width)),
        )

    def forward(self, x):
        q, k, v = torch.einsum("btm,rmn->rbtn", x, self.w).unflatten(-1, (self.h, -1)).transpose(2, 3)
        return (torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v).transpose(1, 2).flatten(2) @ self.wo


def told_everything(
    query,
    key,
    value,
    d_model,
    n_heads,
    W_query,
    W_key,
    W_value,
    W_out,
    b_query=None,
    b_key=None,
    b_value=None,
    b_out=None,
):
    """Right: sizes, weights and biases are all arguments."""

    def part(x, w, b):
        return (x @ w if b is None else x @ w + b).reshape(*x.shape[:2], n_heads, d_model // n_heads).transpose(1, 2)

    q, k, v = part(query, W_query, b_query), part(key, W_key, b_key), part(value, W_value, b_value)
    out = ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).reshape(*query.shape[:2], d_model) @ W_out
    return out if b_out is None else out + b_out


class NotNormalised(Plain):
    def weights(self, scores):
        return torch.exp(scores - scores.amax(-1, keepdim=True))


class ScaledAfterSoftmax(Plain):
    def scores(self, q, k):
        return q @ k.transpose(-2, -1)

    def weights(self, scores):
        return scores.softmax(-1) / math.sqrt(self.d)


class NeverCut(Plain):
    def cut(self, x):
        return x[:, None]

    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


class OverlappingHeads(Plain):
    """Head i takes the numbers from i on, where it should take those from i · d on."""

    def cut(self, x):
        return torch.stack([x[..., i : i + self.d] for i in range(self.h)], 1)


def infinity_times_mask(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + (1 - mask.float()) * float("-inf")
    return scores.softmax(-1) @ v
