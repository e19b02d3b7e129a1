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
from manyheads.spec.stack import Block, Mlp, Moe, Stack, StackSpec

__all__ = ["MOST_RANKS", "rank_of"]

MOST_RANKS = 4096


def rank_of(model: StackSpec, ranks: int) -> StackSpec:
    """The share of `model` that the fullest of `ranks` ranks holds. SpecError, with the numbers that would do, where the heads
    of one of its attentions cannot be shared out so.
    """
    if ranks == 1:
        return model
    attentions = {a for stack in model.stacks for block, _ in stack.groups for a in block.attentions}
    refused = sorted(filter(None, (_refusal(spec, ranks) for spec in attentions)))
    if refused:
        most = min(MOST_RANKS, *(spec.num_heads for spec in attentions))
        valid = (n for n in range(1, most + 1) if not any(_refusal(spec, n) for spec in attentions))
        raise SpecError(f"tensor_parallel={ranks}: {refused[0]}; valid: {', '.join(map(str, valid))}")
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


# Heads that are shared out beside the query heads, and what they are called.
_SHARED = {
    "num_kv_heads": "key/value heads", "num_key_heads": "key heads", "num_value_heads": "value heads",
    "num_state_heads": "state heads",
}  # fmt: skip


def _shared(spec: AttentionSpec) -> dict[str, int]:
    """The counts of the heads that keep something, by their fields; MLA's latents stand whole on every rank."""
    return {name: getattr(spec.kv, name) for name in _SHARED if hasattr(spec.kv, name)}


def _refusal(spec: AttentionSpec, ranks: int) -> str:
    """Why `ranks` ranks cannot share out the heads of one attention, "" where they can."""
    if spec.num_heads % ranks:
        return f"{spec.num_heads} query heads do not divide by {ranks}"
    for name, heads in _shared(spec).items():
        if heads % ranks and ranks % heads:
            return f"{heads} {_SHARED[name]} neither divide by {ranks} nor divide it"
    return ""


def _attention(spec: AttentionSpec, ranks: int) -> AttentionSpec:
    """Heads / ranks of each kind; one replicated head where ranks are a multiple of the heads."""
    shares = {name: max(1, heads // ranks) for name, heads in _shared(spec).items()}
    return replace(spec, num_heads=spec.num_heads // ranks, kv=replace(spec.kv, **shares) if shares else spec.kv)  # type: ignore[arg-type]
