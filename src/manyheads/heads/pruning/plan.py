"""Which heads go, and what is left in each attention: addresses checked, groups respected, earlier removals remembered.

A key/value head goes only with all of its queries. Files and modules need as many queries in each group of a layer, so a
group that has fewer than its neighbours keeps zeroed heads, which give nothing; a layer of which every head goes keeps
one of them, since no module of transformers has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manyheads.checkpoints.pruned import LayerHeads, Pruning, places
from manyheads.errors import ConversionError, ManyheadsError
from manyheads.heads.address import Head, check_heads, format_head, format_heads
from manyheads.quoting import shown
from manyheads.spec.attention import Borrowed
from manyheads.spec.kv import State
from manyheads.spec.positions import Alibi, RelativeBuckets
from manyheads.spec.stack import StackSpec

__all__ = ["ByStack", "Plan", "cannot_shrink", "head_counts", "main_stack", "make_plan", "now_held",
           "stack_name", "units"]  # fmt: skip

ByStack = Mapping[str, Mapping[int, Sequence[int]]]
"""Heads to remove, by stack and layer: {"decoder": {0: (1, 3)}}; the stack "" means the only one."""


@dataclass(frozen=True)
class Plan:
    """What will be left.

    held     each attention's heads as the model holds them now, by (role, layer)
    gone     original numbers of all heads that do not work afterwards, earlier ones included
    new      those among them that were asked for now and worked until now; named as everything that looks at heads names
             them, without a stack where the model has one (`place` finds them in `held`)
    again    those that were asked for and had gone before: nothing is done about them
    """

    held: Mapping[tuple[str, int], LayerHeads]
    gone: Mapping[tuple[str, int], frozenset[int]]
    new: tuple[Head, ...]
    again: tuple[Head, ...]

    def place(self, head: Head) -> tuple[str, int]:
        """Where `held` and `gone` have a head of this plan."""
        return head.stack or next(iter(self.held))[0], head.layer

    def groups(self, place: tuple[str, int]) -> dict[int, list[int]]:
        """The heads of one attention that still work afterwards, by their key/value head, of those that have any."""
        held, gone = self.held[place], self.gone[place]
        found: dict[int, list[int]] = {}
        for head in held.kept:
            if head not in gone:
                found.setdefault(head // held.group, []).append(head)
        return found

    @property
    def compact(self) -> Pruning:
        """As small as each layer can be by itself."""
        return Pruning("compact", tuple(
            (*place, _arranged(held, self.groups(place), *self._size(place))) for place, held in self.held.items()
        ))  # fmt: skip

    @property
    def padded(self) -> Pruning:
        """As large as the model is now, with zeros where heads were."""
        return Pruning("padded", tuple(
            (*place, LayerHeads(held.heads, held.kv_heads, *self._zeroed(place, held)))
            for place, held in self.held.items()
        ))  # fmt: skip

    @property
    def uniform(self) -> Pruning | None:
        """The same counts in every layer: the largest that any needs; None where that is what the model has now."""
        first = next(iter(self.held.values()))
        if any(
            (len(held.slots), len(held.kv_slots)) != (len(first.slots), len(first.kv_slots))
            for held in self.held.values()
        ):
            return None
        sizes = [self._size(place) for place in self.held]
        groups, queries = max(size[0] for size in sizes), max(size[1] for size in sizes)
        if groups * queries == len(first.slots) and groups == len(first.kv_slots):
            return None
        return Pruning("uniform", tuple(
            (*place, _arranged(held, self.groups(place), groups, queries)) for place, held in self.held.items()
        ))  # fmt: skip

    @property
    def sizes(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Key/value heads, and queries of each, that every attention needs, by (role, layer)."""
        return {place: self._size(place) for place in self.held}

    def zeros(self, pruning: Pruning) -> int:
        """Zeroed heads that a form of this plan holds."""
        return sum(slot < 0 for _, _, heads in pruning.layers for slot in heads.slots)

    def _size(self, place: tuple[str, int]) -> tuple[int, int]:
        """Key/value heads and queries of each that this attention needs, at least one."""
        groups = self.groups(place)
        return max(len(groups), 1), max((len(each) for each in groups.values()), default=1)

    def _zeroed(self, place: tuple[str, int], held: LayerHeads) -> tuple[tuple[int, ...], tuple[int, ...]]:
        groups = self.groups(place)
        working = {head for each in groups.values() for head in each}
        return (
            tuple(slot if slot in working else -1 for slot in held.slots),
            tuple(slot if slot in groups else -1 for slot in held.kv_slots),
        )


def _arranged(held: LayerHeads, groups: Mapping[int, Sequence[int]], count: int, queries: int) -> LayerHeads:
    """`count` key/value heads of `queries` heads each: the working ones, and zeros where there are none."""
    rows = [(kv, groups[kv]) for kv in sorted(groups)] + [(-1, ())] * (count - len(groups))
    slots = tuple(slot for _, row in rows for slot in (*row, *[-1] * (queries - len(row))))
    return LayerHeads(held.heads, held.kv_heads, slots, tuple(kv for kv, _ in rows))


def stack_name(held: Mapping[tuple[str, int], LayerHeads], role: str) -> str:
    """A stack as addresses have it: "" where the model has no other."""
    return "" if len({name for name, _ in held}) == 1 else role


def now_held(stack: StackSpec, before: Pruning | None = None) -> dict[tuple[str, int], LayerHeads]:
    """The heads that a model holds, by (role, layer): all of `stack`, or what its record `before` says."""
    found = {}
    for role, layer, spec in places(stack):
        if isinstance(spec.kv, State):
            continue
        earlier = before.at(role, layer) if before is not None else None
        kv = getattr(spec.kv, "num_kv_heads", spec.num_heads)
        found[role, layer] = earlier or LayerHeads(
            spec.num_heads, kv, tuple(range(spec.num_heads)), tuple(range(kv))
        )  # fmt: skip
    return found


def main_stack(stack: StackSpec) -> str:
    """The stack that an address without one means: the only one, or the decoder where there are several."""
    return stack.main.role


def head_counts(stack: StackSpec, before: Pruning | None = None) -> dict[str, list[int]]:
    """Heads that each layer had originally, by role; 0 where a layer has none that could go."""
    found: dict[str, list[int]] = {}
    held = now_held(stack, before)
    for role, layer, _ in places(stack):
        row = found.setdefault(role, [])
        row.extend([0] * (layer - len(row)))
        row.append(held[role, layer].heads if (role, layer) in held else 0)
    return found


def make_plan(stack: StackSpec, heads: ByStack, *, before: Pruning | None = None) -> Plan:
    """The plan that removes `heads`, by their original numbers, from a model that is `stack` as its configuration says.

    Raises ManyheadsError for layers and heads that do not exist, and ConversionError where nothing would be removed or a
    layer cannot lose heads.
    """
    counts, held = head_counts(stack, before), now_held(stack, before)
    asked: list[Head] = []
    for name, layers in heads.items():
        role = name or main_stack(stack)
        if role not in counts:
            raise ManyheadsError(f"there is no stack {shown(role)}; the model has {', '.join(counts)}")
        for layer, numbers in layers.items():
            if 0 <= layer < len(counts[role]) and not counts[role][layer]:
                raise ConversionError(f"layer {layer} of the {role} is linear attention, whose heads cannot be removed")
            if len(set(numbers)) < len(numbers):
                raise ManyheadsError(f"{format_heads({layer: numbers})} names a head twice; expected each once")
        check_heads(layers, counts[role], stack=name)
        asked += [Head(layer, number, role) for layer in layers for number in layers[layer]]
    if len(set(asked)) < len(asked):
        raise ManyheadsError(f"a head is named with and without the stack {main_stack(stack)}; expected each once")
    gone = {place: set(each.removed) for place, each in held.items()}
    new = sorted(head for head in asked if head.head not in gone[head.stack, head.layer])
    again = sorted(set(asked) - set(new))
    _check_kv_sharing(stack, new)
    for head in new:
        gone[head.stack, head.layer].add(head.head)
    called = [tuple(head._replace(stack=stack_name(held, head.stack)) for head in each) for each in (new, again)]
    if not new:
        more = f" and {len(again) - 5} more" if len(again) > 5 else ""
        said = f"already pruned: {', '.join(map(format_head, called[1][:5]))}{more}" if again else "no head is named"
        raise ConversionError(f"nothing to prune: {said}; expected a head that the model still has")
    return Plan(held, {place: frozenset(each) for place, each in gone.items()}, *called)


def _check_kv_sharing(stack: StackSpec, new: Sequence[Head]) -> None:
    sources = {spec.source.layer for _, _, spec in places(stack) if isinstance(spec.source, Borrowed)}
    for head in new:
        own = next(spec for role, layer, spec in places(stack) if (role, layer) == (head.stack, head.layer))
        if isinstance(own.source, Borrowed) or (head.stack == "decoder" and head.layer in sources):
            raise ConversionError(
                f"layer {head.layer} shares keys and values with another layer, so its heads cannot be removed alone"
            )


def cannot_shrink(stack: StackSpec, pruning: Pruning) -> str:
    """Why heads of this model cannot leave its weights, "" where they can: then only zeros keep what it computes."""
    biased: dict[str, set[tuple[int, ...]]] = {}
    for role, layer, spec in places(stack):
        heads = pruning.at(role, layer)
        if heads is None or not heads.removed:
            continue
        if spec.qk_norm is not None and spec.qk_norm.scope == "full":
            return "its queries and keys are normed over all heads of a layer together, so each head's depend on the others'"
        if isinstance(spec.positions, Alibi):
            return "its position slopes belong to the numbers of the heads"
    for role, _, spec in places(stack):
        if isinstance(spec.positions, RelativeBuckets):
            biased.setdefault(role, set())
    for role, _, heads in pruning.layers:
        if role in biased:
            biased[role].add(heads.slots)
    if any(len(each) > 1 for each in biased.values()):
        return "the layers of a stack share one table of position biases by head, so all must lose the same heads"
    crossing = {len(heads.slots) for role, _, heads in pruning.layers if role == "cross"}
    if "decoder" in biased and len(crossing) > 1:
        return (
            "the first layer's cross-attention hands its position biases (zeros, a row for each head) to all others, so all "
            "must keep the same number of heads"
        )
    return ""


def units(plan_of: Mapping[tuple[str, int], LayerHeads], *, whole_groups: bool) -> dict[Head, tuple[Head, ...]]:
    """What can go at once: single heads, or with `whole_groups` all working queries of a key/value head."""
    found: dict[Head, tuple[Head, ...]] = {}
    for (role, layer), held in plan_of.items():
        named = stack_name(plan_of, role)
        each: dict[int, list[Head]] = {}
        for head in held.kept:
            each.setdefault(head // held.group if whole_groups else head, []).append(Head(layer, head, named))
        found.update({members[0]: tuple(members) for members in each.values()})
    return found
