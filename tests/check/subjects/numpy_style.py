"""Multi-head attention in numpy: a function of x and four matrices, and a class."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def multi_head_attention(X, W_q, W_k, W_v, W_o, num_heads):
    """Right: X (tokens, d_model)."""
    T, d = X.shape
    d_k = d // num_heads
    Q, K, V = ((X @ W).reshape(T, num_heads, d_k).transpose(1, 0, 2) for W in (W_q, W_k, W_v))
    heads = softmax(Q @ K.transpose(0, 2, 1) / np.sqrt(d_k)) @ V
    return heads.transpose(1, 0, 2).reshape(T, d) @ W_o


class SelfAttention:
    """Right, and a plain object."""

    def __init__(self, d_model, num_heads, seed=0):
        rng = np.random.default_rng(seed)
        self.num_heads = num_heads
        self.Wq, self.Wk, self.Wv, self.Wo = (rng.normal(size=(d_model, d_model)).astype(np.float32) for _ in range(4))

    def __call__(self, x, causal=False):
        b, t, d = x.shape
        q, k, v = ((x @ w).reshape(b, t, self.num_heads, -1).swapaxes(1, 2) for w in (self.Wq, self.Wk, self.Wv))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        if causal:
            scores = np.where(np.tril(np.ones((t, t), dtype=bool)), scores, -np.inf)
        return (softmax(scores) @ v).swapaxes(1, 2).reshape(b, t, d).astype(x.dtype) @ self.Wo


def output_transposed(X, W_q, W_k, W_v, W_o, num_heads):
    """x @ W for three, W.T for the fourth."""
    return multi_head_attention(X, W_q, W_k, W_v, W_o.T, num_heads)


def heads_by_reshape(X, W_q, W_k, W_v, W_o, num_heads):
    T, d = X.shape
    d_k = d // num_heads
    Q, K, V = ((X @ W).reshape(num_heads, T, d_k) for W in (W_q, W_k, W_v))
    heads = softmax(Q @ K.transpose(0, 2, 1) / np.sqrt(d_k)) @ V
    return heads.transpose(1, 0, 2).reshape(T, d) @ W_o


def no_softmax(X, W_q, W_k, W_v, W_o, num_heads):
    T, d = X.shape
    d_k = d // num_heads
    Q, K, V = ((X @ W).reshape(T, num_heads, d_k).transpose(1, 0, 2) for W in (W_q, W_k, W_v))
    heads = (Q @ K.transpose(0, 2, 1) / np.sqrt(d_k)) @ V
    return heads.transpose(1, 0, 2).reshape(T, d) @ W_o
