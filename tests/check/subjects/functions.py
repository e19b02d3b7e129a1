"""Functions of x and weights in torch, in several orders and both ways round."""

import torch
import torch.nn.functional as F  # noqa: N812 as all tutorials write it


def split(x, num_heads):
    b, t, m = x.shape
    return x.view(b, t, num_heads, m // num_heads).transpose(1, 2)


def merge(x):
    b, h, t, d = x.shape
    return x.transpose(1, 2).reshape(b, t, h * d)


def mha(x, W_q, W_k, W_v, W_o, num_heads, mask=None):
    """Right: x @ W, mask True = blocked."""
    q, k, v = (split(x @ W, num_heads) for W in (W_q, W_k, W_v))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return merge(F.softmax(scores, dim=-1) @ v) @ W_o


def linears(num_heads, x, out_weight, out_bias, q_weight, q_bias, k_weight, k_bias, v_weight, v_bias, is_causal=False):
    """Right: torch's way round, W_o first, biases."""
    q = split(F.linear(x, q_weight, q_bias), num_heads)
    k = split(F.linear(x, k_weight, k_bias), num_heads)
    v = split(F.linear(x, v_weight, v_bias), num_heads)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    return F.linear(merge(out), out_weight, out_bias)


def unnamed(tokens, a, b, c, d, h):
    """Right, and no name says anything."""
    return mha(tokens, a, b, c, d, h)


def neox(x, qkv_weight, dense_weight, num_attention_heads):
    """Right: the rows of the fused weight lie head by head, q, k and v of each together."""
    b, t, m = x.shape
    fused = F.linear(x, qkv_weight).view(b, t, num_attention_heads, 3 * m // num_attention_heads)
    q, k, v = fused.transpose(1, 2).chunk(3, dim=-1)
    return F.linear(merge(F.scaled_dot_product_attention(q, k, v)), dense_weight)


def grouped(x, Wq, Wk, Wv, Wo, n_heads, n_kv_heads):
    """Right."""
    b, t, _ = x.shape
    q = (x @ Wq).view(b, t, n_heads, -1).transpose(1, 2)
    k, v = ((x @ W).view(b, t, n_kv_heads, -1).transpose(1, 2) for W in (Wk, Wv))
    k, v = (y.repeat_interleave(n_heads // n_kv_heads, dim=1) for y in (k, v))
    return merge(F.scaled_dot_product_attention(q, k, v)) @ Wo


def grouped_tiled(x, Wq, Wk, Wv, Wo, n_heads, n_kv_heads):
    b, t, _ = x.shape
    q = (x @ Wq).view(b, t, n_heads, -1).transpose(1, 2)
    k, v = ((x @ W).view(b, t, n_kv_heads, -1).transpose(1, 2) for W in (Wk, Wv))
    k, v = (y.repeat(1, n_heads // n_kv_heads, 1, 1) for y in (k, v))
    return merge(F.scaled_dot_product_attention(q, k, v)) @ Wo


def blocked_as_visible(x, W_q, W_k, W_v, W_o, num_heads, causal=True):
    """A mask of triu is meant to block, and torch shows where it is True."""
    q, k, v = (split(x @ W, num_heads) for W in (W_q, W_k, W_v))
    t = x.shape[1]
    late = torch.ones(t, t, dtype=torch.bool).triu(1) if causal else None
    return merge(F.scaled_dot_product_attention(q, k, v, attn_mask=late)) @ W_o


def keys_not_projected(x, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = split(x @ W_q, num_heads), split(x, num_heads), split(x @ W_v, num_heads)
    return merge(F.scaled_dot_product_attention(q, k, v)) @ W_o


def scaled_twice(x, W_q, W_k, W_v, W_o, num_heads):
    q, k, v = (split(x @ W, num_heads) for W in (W_q, W_k, W_v))
    q = q / q.shape[-1] ** 0.5
    return merge(F.scaled_dot_product_attention(q, k, v)) @ W_o
