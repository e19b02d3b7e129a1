"""What a removal of heads saves in weights, and what more would have to go where it saves nothing.

Modules hold as many queries for each key/value head of a layer as for the next. So heads leave the weights when all
queries of a key/value head go, or when each key/value head of the layer loses one; until then zeros stand where they were.
"""

from __future__ import annotations

from collections.abc import Sequence

from manyheads.checkpoints.pruned import Pruning
from manyheads.heads.address import Head, format_heads
from manyheads.heads.pruning.plan import Plan, cannot_shrink, stack_name
from manyheads.spec.stack import StackSpec

__all__ = ["completing", "heads_text", "is_smaller", "why_nothing"]


def is_smaller(plan: Plan, pruning: Pruning) -> bool:
    """Whether a form of `plan` holds fewer heads in any attention than the model does now."""
    return any(
        len(then.slots) < len(plan.held[role, layer].slots) or len(then.kv_slots) < len(plan.held[role, layer].kv_slots)
        for role, layer, then in pruning.layers
    )


def completing(plan: Plan, *, whole: bool = False) -> tuple[Head, ...]:
    """The fewest heads that would have to go too before a layer of `plan.new` is smaller; () where none would help.

    whole  only all that is left of a key/value head's queries, so that keys, values and the cache shrink
    """
    found: list[tuple[Head, ...]] = []
    for role, layer in dict.fromkeys(map(plan.place, plan.new)):
        groups = list(plan.groups((role, layer)).values())
        most = max(map(len, groups), default=0)
        options = [min(groups, key=len)] if len(groups) > 1 else []
        if most > 1 and not whole:
            options.append([each[-1] for each in groups if len(each) == most])
        name = stack_name(plan.held, role)
        found += [tuple(Head(layer, head, name) for head in option) for option in options]
    return min(found, key=len, default=())


def why_nothing(plan: Plan, stated: StackSpec) -> str:
    """Why no form of `plan` is smaller than the model is now, in a line that names the least that would save something; ""
    where one is. `stated`: the model as its configuration says."""
    why = cannot_shrink(stated, plan.compact)
    if why and not _uniformly_smaller(plan, stated):
        return f"nothing is smaller: {why}, so zeros stand where these heads were"
    if why or is_smaller(plan, plan.compact):
        return ""
    least, group = completing(plan), completing(plan, whole=True)
    if not least:
        return "nothing is smaller: a layer that loses all of its heads keeps one, as zeros"
    told = f"{heads_text(least)} too"
    if group and group != least:
        told += (
            f", or {heads_text(group)} too for a whole group with its keys and values (whole_groups=True takes no less)"
        )
    return (
        "nothing is smaller: zeros stand where these heads were until all queries of a key/value head go, or one of each; "
        f"the least that would save something: {told}"
    )


def _uniformly_smaller(plan: Plan, stated: StackSpec) -> bool:
    """Whether all layers can have fewer heads, as many in one as in another."""
    return plan.uniform is not None and not cannot_shrink(stated, plan.uniform)


def heads_text(heads: Sequence[Head]) -> str:
    """Heads as --heads takes them: "0:0-2,5", "encoder/0:1;cross/2:3"."""
    stacks = list(dict.fromkeys(head.stack for head in heads))
    return ";".join(
        format_heads(
            {layer: [one.head for one in heads if (one.stack, one.layer) == (role, layer)]
             for layer in {one.layer for one in heads if one.stack == role}},
            stack=role, short=True,
        )
        for role in stacks
    )  # fmt: skip
