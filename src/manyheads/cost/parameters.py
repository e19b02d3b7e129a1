"""Parameters of a whole model, summed over its inventory: stored, by part, and active in a mixture of experts."""

from __future__ import annotations

from manyheads.cost.algebra import least
from manyheads.cost.dtypes import dtype as format_of
from manyheads.spec.inventory import Weight, count, weights
from manyheads.spec.stack import Moe, Stack, StackSpec

__all__ = ["active_parameters", "expert_elements", "parameter_parts", "stored_bytes", "stored_parameters"]

PARTS = ("attention", "mlp", "norm", "embedding", "head", "other")


def stored_parameters(inventory: tuple[Weight, ...]) -> int:
    """Elements stored once: parameters and stored buffers (DeepSeek-V3's router corrections); a tied head once."""
    return count(inventory, buffers=True)


def stored_bytes(model: StackSpec, dtype: str) -> int:
    """Bytes of all weights in one numeric format."""
    return int(format_of(dtype).bytes(stored_parameters(weights(model))))


def parameter_parts(inventory: tuple[Weight, ...]) -> dict[str, int]:
    """Stored elements by part; the parts add up to `stored_parameters`."""
    return {part: count(inventory, part, buffers=True) for part in PARTS}


def expert_elements(moe: Moe, d_model: int, experts: int) -> int:
    """Elements of `experts` of the mixture's routed experts."""
    own = count(w for w in weights(moe, d_model) if w.name.startswith("experts."))
    return own // moe.experts * experts


def idle_elements(stack: Stack, batch: int) -> int:
    """Elements of routed experts that one step of `batch` tokens leaves unread, at least: E - min(E, batch·active)."""
    idle = 0
    for block, times in stack.groups:
        if isinstance(block.mlp, Moe):
            touched = least(block.mlp.experts, batch * block.mlp.active)
            idle += times * expert_elements(block.mlp, stack.d_model, block.mlp.experts - touched)
    return idle


def active_parameters(model: StackSpec) -> dict[str, int]:
    """Parameters that take part in one token, in the three published conventions.

    "neither" counts no embedding and no head, "head_only" the head (a tied table once, as the head), "both" the
    input embedding as well. DeepSeek prints "both" as 37B and "head_only" as 36.7B; gpt-oss counts the head only.
    DeepSeek-V3's router corrections, stored buffers, are counted, as in those figures.
    """
    inventory = weights(model)
    idle = sum(idle_elements(stack, 1) for stack in model.stacks)
    both = stored_parameters(inventory) - idle
    embedding = count(inventory, "embedding")
    table = model.vocab_size * model.main.d_model
    tied = table if model.head == "tied" else 0
    neither = both - embedding - count(inventory, "head")
    return {"neither": neither, "head_only": both - embedding + tied, "both": both}
