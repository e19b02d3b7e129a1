"""Multi-head attention in numpy, a sequence and a head at a time: what the drop-in for torch's module is held against.

Written from arXiv 1706.03762, section 3.2.2, and from what torch.nn.MultiheadAttention documents of its arguments; a row
without a visible key has weights of zero. Everything in float64. Needs torch only to read tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["attend", "blocked"]

Array = np.ndarray


def attend(
    module: Any, query: Any, key: Any, value: Any, *, attn_mask: Any = None, key_padding_mask: Any = None
) -> tuple[Array, Array]:
    """(output (batch, queries, m), weights (batch, heads, queries, keys)) of batch-first tensors, without dropout."""
    named = {name: number(tensor) for name, tensor in module.state_dict().items()}
    heads, m = module.num_heads, module.embed_dim
    wq, wk, wv = projections(named, m)
    bias = named.get("in_proj_bias", np.zeros(3 * m))
    query, key, value = number(query), number(key), number(value)
    (batch, queries, _), keys, d = query.shape, key.shape[1], m // heads
    extra = ("bias_k" in named) + module.add_zero_attn
    output = np.zeros((batch, queries, m))
    weights = np.zeros((batch, heads, queries, keys + extra))
    for b in range(batch):
        q, k, v = query[b] @ wq.T + bias[:m], key[b] @ wk.T + bias[m : 2 * m], value[b] @ wv.T + bias[2 * m :]
        if "bias_k" in named:
            k, v = np.vstack([k, named["bias_k"][0]]), np.vstack([v, named["bias_v"][0]])
        if module.add_zero_attn:
            k, v = np.vstack([k, np.zeros((1, m))]), np.vstack([v, np.zeros((1, m))])
        context = np.zeros((queries, m))
        for h in range(heads):
            mine = slice(h * d, (h + 1) * d)
            scores = q[:, mine] @ k[:, mine].T / np.sqrt(d)
            scores[:, :keys] += added(attn_mask, key_padding_mask, b, h, heads)
            weights[b, h] = probabilities(scores)
            context[:, mine] = weights[b, h] @ v[:, mine]
        output[b] = context @ named["out_proj.weight"].T + named.get("out_proj.bias", 0.0)
    return output, weights


def projections(named: dict[str, Array], m: int) -> tuple[Array, Array, Array]:
    """The matrices of queries, keys and values, packed or apart."""
    if "in_proj_weight" in named:
        packed = named["in_proj_weight"]
        return packed[:m], packed[m : 2 * m], packed[2 * m :]
    return named["q_proj_weight"], named["k_proj_weight"], named["v_proj_weight"]


def added(attn_mask: Any, key_padding_mask: Any, b: int, h: int, heads: int) -> Array | float:
    """What the masks add to the scores of one head of one sequence."""
    total: Array | float = 0.0
    if attn_mask is not None:
        mask = blocked(attn_mask)
        total = total + (mask if mask.ndim == 2 else mask[b * heads + h])
    if key_padding_mask is not None:
        total = total + blocked(key_padding_mask)[b]
    return total


def blocked(mask: Any) -> Array:
    """A boolean mask as what it adds: minus infinity where True; a float mask as it is."""
    return np.where(mask.numpy(), -np.inf, 0.0) if str(mask.dtype) == "torch.bool" else number(mask)


def probabilities(scores: Array) -> Array:
    """Softmax over the last axis; zeros where all is minus infinity."""
    if not scores.shape[-1]:
        return scores
    top = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(top), 0.0, top))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1.0, total)


def number(tensor: Any) -> Array:
    return tensor.detach().double().numpy()
