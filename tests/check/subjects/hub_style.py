"""Grouped attention in the style of model hubs: a configuration, four projections, an additive mask, a cache that is passed."""

import torch
from torch import nn


def repeat_kv(x, n_rep):
    b, kv, t, d = x.shape
    return x[:, :, None].expand(b, kv, n_rep, t, d).reshape(b, kv * n_rep, t, d)


class GroupedAttention(nn.Module):
    """Right."""

    def __init__(self, config, layer_idx=0):
        super().__init__()
        self.hidden_size, self.num_heads = config.hidden_size, config.num_attention_heads
        self.head_dim = getattr(config, "head_dim", self.hidden_size // self.num_heads)
        self.num_key_value_heads = config.num_key_value_heads
        self.groups = self.num_heads // self.num_key_value_heads
        self.q_proj = nn.Linear(self.hidden_size, self.num_heads * self.head_dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(self.hidden_size, self.num_key_value_heads * self.head_dim, bias=config.attention_bias)
        self.v_proj = nn.Linear(self.hidden_size, self.num_key_value_heads * self.head_dim, bias=config.attention_bias)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, self.hidden_size, bias=False)

    def expand(self, x):
        return repeat_kv(x, self.groups)

    def extend(self, past, k, v):
        return torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)

    def hide(self, scores, attention_mask, q_len, kv_len):
        late = torch.ones(q_len, kv_len, dtype=torch.bool).triu(1 + kv_len - q_len)
        scores = scores.masked_fill(late, torch.finfo(scores.dtype).min)
        return scores if attention_mask is None else scores + attention_mask

    def forward(
        self, hidden_states, attention_mask=None, past_key_value=None, output_attentions=False, use_cache=False
    ):
        b, q_len, _ = hidden_states.size()
        q = self.q_proj(hidden_states).view(b, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, q_len, self.num_key_value_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, q_len, self.num_key_value_heads, self.head_dim).transpose(1, 2)
        if past_key_value is not None:
            k, v = self.extend(past_key_value, k, v)
        past = (k, v) if use_cache else None
        k, v = self.expand(k), self.expand(v)
        scores = torch.matmul(q, k.transpose(2, 3)) / self.head_dim**0.5
        scores = self.hide(scores, attention_mask, q_len, k.shape[2])
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(b, q_len, self.num_heads * self.head_dim)
        return self.o_proj(out), weights if output_attentions else None, past


class KeyValueHeadsTiled(GroupedAttention):
    def expand(self, x):
        return x.repeat(1, self.groups, 1, 1)


class CacheReplaced(GroupedAttention):
    """The past is taken in and not put before the new keys and values."""

    def extend(self, past, k, v):
        return k, v


class MaskTopLeftWithCache(GroupedAttention):
    def hide(self, scores, attention_mask, q_len, kv_len):
        late = torch.ones(q_len, kv_len, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(late, torch.finfo(scores.dtype).min)
        return scores if attention_mask is None else scores + attention_mask
