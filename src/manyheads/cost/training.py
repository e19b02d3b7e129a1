"""Bytes of activations that one training step keeps for the backward pass.

Counted as PyTorch's autograd keeps them, each tensor once: the inputs of every matrix product and nonlinearity. With
scores held (naive): Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1) give 11·s·b·h + 5·a·s²·b bytes for a
16-bit attention with dropout; without dropout (its masks and copies, 1·s·b·h + 3·a·s²·b) that is what stands here.
Tiled kernels (FlashAttention) keep one log-sum-exp a query and head, in 4 bytes, in place of the scores.
"""

from __future__ import annotations

from manyheads.cost import formulas
from manyheads.cost.algebra import Number
from manyheads.cost.workload import Workload
from manyheads.spec.attention import AttentionSpec, Cross
from manyheads.spec.kv import Heads, Latent, State
from manyheads.spec.stack import Block, Mlp, Moe, Stack, StackSpec

__all__ = ["attention_activation_elements", "kept_activation_bytes", "mlp_activation_elements"]

LOG_SUM_EXP_BYTES = 4


def attention_activation_elements(spec: AttentionSpec) -> int:
    """Elements kept a token, scores apart: the layer's input, queries, keys, values, and the heads' output."""
    kv, out = spec.kv, spec.num_output_heads * spec.v_head_dim
    if isinstance(kv, Latent):
        latents = kv.rank * (2 if kv.norm else 1) + kv.q_rank * (2 if kv.norm else 1)
        heads = spec.num_heads * (2 * kv.head_dim + kv.v_head_dim)
        return spec.d_model + latents + heads + out
    if isinstance(kv, State):
        key_side = kv.num_key_heads * kv.feature_dim + kv.num_value_heads * kv.v_head_dim
        return spec.d_model + spec.num_heads * kv.feature_dim + key_side + out
    return spec.d_model + spec.num_heads * kv.head_dim + kv.num_kv_heads * (kv.head_dim + kv.v_head_dim) + out


def mlp_activation_elements(mlp: Mlp | Moe | None, d_model: int) -> int:
    """Elements kept a token: the input, and per hidden unit two values (four where gated: a, act(a), b and the product)."""
    if mlp is None:
        return 0
    width = mlp.width if isinstance(mlp, Mlp) else mlp.active * mlp.width + mlp.shared_width
    copies = 1 if isinstance(mlp, Mlp) else mlp.active + bool(mlp.shared_width)
    return copies * d_model + (4 if mlp.gated else 2) * width


def _block_bytes(block: Block, d_model: int, load: Workload, tokens: Number, memory: Number, *, tiled: bool) -> Number:
    elements = tokens * (mlp_activation_elements(block.mlp, d_model) + d_model * len(block.norm_places))
    extra = 0 * tokens
    for attention in block.attentions:
        elements += tokens * attention_activation_elements(attention)
        if isinstance(attention.kv, State):
            continue
        keys = memory if isinstance(attention.source, Cross) else tokens
        if isinstance(attention.source, Cross) and isinstance(attention.kv, Heads):
            kv = attention.kv
            own = formulas.heads_cache_elements(kv.num_kv_heads, kv.head_dim, kv.v_head_dim)
            elements += (keys - tokens) * own
        if tiled:
            extra += LOG_SUM_EXP_BYTES * attention.num_heads * tokens
        else:
            elements += formulas.score_elements(1, attention.num_heads, tokens, keys)
    return load.score.bytes(elements) + extra


def _stack_bytes(stack: Stack, load: Workload, tokens: Number, memory: Number, *, tiled: bool) -> Number:
    total = sum(
        times * _block_bytes(block, stack.d_model, load, tokens, memory, tiled=tiled) for block, times in stack.groups
    )
    return total + load.score.bytes(tokens * stack.d_model * bool(stack.final_norm))


def kept_activation_bytes(model: StackSpec, load: Workload, *, tiled: bool) -> Number:
    """Bytes kept by all blocks and norms of one training step; `tiled` = scores never held. Head and loss apart."""
    total = 0
    if model.encoder is not None:
        tokens = load.context if model.decoder is None else load.source_tokens
        total += _stack_bytes(model.encoder, load, tokens, 0, tiled=tiled)
    if model.decoder is not None:
        total += _stack_bytes(model.decoder, load, load.context, load.source_tokens, tiled=tiled)
    return load.batch * total
