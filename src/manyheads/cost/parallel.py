"""What one rank of N holds under tensor parallelism (Megatron's split, arXiv 1909.08053), as a spec of its own.

Query heads, MLP and expert widths and the vocabulary are divided; key/value heads too, or replicated once N > K; the
latents of MLA, norms, routers and positions stand whole on every rank. So every formula prices a rank as it prices a
model.
"""

from __future__ import annotations

from dataclasses import replace

from manyheads.cost.algebra import ceil_div
from manyheads.errors import SpecError
from manyheads.spec.attention import AttentionSpec
from manyheads.spec.kv import Heads, State
from manyheads.spec.stack import Block, Mlp, Moe, Stack, StackSpec

__all__ = ["rank_of"]


def rank_of(model: StackSpec, ranks: int) -> StackSpec:
    """The share of `model` that the fullest of `ranks` ranks holds."""
    if ranks == 1:
        return model
    stacks = tuple(_stack(stack, ranks) for stack in model.stacks)
    return replace(model, stacks=stacks, vocab_size=ceil_div(model.vocab_size, ranks))


def _stack(stack: Stack, ranks: int) -> Stack:
    blocks = {block: _block(block, ranks) for block, _ in stack.groups}
    return replace(stack, blocks=tuple(blocks[block] for block in stack.blocks))


def _block(block: Block, ranks: int) -> Block:
    return replace(block, attentions=tuple(_attention(a, ranks) for a in block.attentions), mlp=_mlp(block.mlp, ranks))


def _mlp(mlp: Mlp | Moe | None, ranks: int) -> Mlp | Moe | None:
    if mlp is None:
        return None
    if isinstance(mlp, Mlp):
        return replace(mlp, width=ceil_div(mlp.width, ranks))
    return replace(mlp, width=ceil_div(mlp.width, ranks), shared_width=ceil_div(mlp.shared_width, ranks))


def _attention(spec: AttentionSpec, ranks: int) -> AttentionSpec:
    if spec.num_heads % ranks:
        raise SpecError(
            f"--tensor-parallel {ranks}: {spec.num_heads} query heads do not divide by {ranks}; valid: "
            f"{', '.join(str(n) for n in range(1, spec.num_heads + 1) if spec.num_heads % n == 0)}"
        )
    kv = spec.kv
    if isinstance(kv, Heads):
        kv = replace(kv, num_kv_heads=_share(kv.num_kv_heads, ranks, "key/value heads"))
    elif isinstance(kv, State):
        kv = replace(
            kv,
            num_key_heads=_share(kv.num_key_heads, ranks, "key heads"),
            num_value_heads=_share(kv.num_value_heads, ranks, "value heads"),
            num_state_heads=_share(kv.num_state_heads, ranks, "state heads"),
        )
    return replace(spec, num_heads=spec.num_heads // ranks, kv=kv)


def _share(heads: int, ranks: int, what: str) -> int:
    """heads / ranks where it divides; one replicated head where ranks are a multiple of the heads."""
    if heads % ranks and ranks % heads:
        raise SpecError(f"--tensor-parallel {ranks}: {heads} {what} neither divide by {ranks} nor divide it")
    return max(1, heads // ranks)
