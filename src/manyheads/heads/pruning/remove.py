"""Heads removed for real: from weights, biases and cache, of a model in memory or of one that is written.

    prune(model, {0: (1, 3), 5: (2,)})         # by the numbers that the heads first had
    prune(model, {0: (1, 2)})                  # 0:1 went before: only 0:2 does

What is left computes what the whole model does when those heads' outputs are zeros at the input of the output
projection. Sets compose, and the record in the configuration (`checkpoints.pruned`) keeps the original numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from manyheads.checkpoints.layout import Expected
from manyheads.checkpoints.pruned import KEY, LayerHeads, Pruning, places, prefix_in, prefix_of, shrunk
from manyheads.cost.parameters import stored_parameters
from manyheads.errors import BackendError, ConversionError
from manyheads.heads.address import Heads, addresses
from manyheads.heads.model_spec import Described, describe, model_settings
from manyheads.heads.pruning.plan import ByStack, Plan, cannot_shrink, make_plan, now_held
from manyheads.heads.pruning.savings import heads_text, why_nothing
from manyheads.models.door.attentions import find_attentions
from manyheads.models.door.door import Call
from manyheads.models.load.resize import attention_items, resize
from manyheads.models.shared_memory import overlapping
from manyheads.models.store.head_counts import uniform_settings
from manyheads.models.store.patterns import put_together, take_apart
from manyheads.spec.inventory import Weight, weights
from manyheads.spec.stack import StackSpec

__all__ = ["Pruned", "PrunedWeights", "by_stack", "mask", "prune"]


@dataclass(frozen=True)
class Pruned:
    """What was done to a model in memory.

    plan     which heads went; `pruning`: the heads that each attention holds now
    stack    what it is now; `before`: what it was
    note     why nothing is smaller, and the least that would have to go too; "" where something is
    """

    plan: Plan
    pruning: Pruning
    stack: StackSpec
    before: StackSpec
    note: str = ""

    @property
    def zeros(self) -> int:
        """Zeroed heads that the model holds now: they give nothing and take the room of any other."""
        return self.plan.zeros(self.pruning)

    @property
    def saved_elements(self) -> int:
        """Elements of its weights that are gone, 0 where zeros took the place of every head."""
        then, now = (stored_parameters(weights(stack)) for stack in (self.before, self.stack))
        return then - now

    def __repr__(self) -> str:
        held = stored_parameters(weights(self.before))
        return (
            f"Pruned({len(self.plan.new)} heads removed: {heads_text(self.plan.new)}; {self.saved_elements:,} of {held:,} "
            f"elements saved, {self.zeros} zeroed heads)"
        )


def by_stack(heads: Heads) -> ByStack:
    """Heads by stack and layer; the stack is "" where none is given."""
    found: dict[str, dict[int, list[int]]] = {}
    for head in addresses(heads):
        found.setdefault(head.stack, {}).setdefault(head.layer, []).append(head.head)
    return found


def prune(model: nn.Module, heads: Heads) -> Pruned:
    """Remove `heads` from a transformers model, in place: weights, biases, the counts of its modules, and so its cache.

    heads  by their original numbers, in any form that `heads.address.addresses` reads; those that went before are left
           alone

    A key/value head goes only with all its queries; a group that keeps fewer queries than its neighbours gets zeroed heads.
    The configuration records what is gone, and its counts change where all layers end up alike. Where zeros take the place
    of every head nothing is smaller: `Pruned.note` says so, and what would have to go too.

    Raises ManyheadsError for layers and heads that do not exist, ConversionError where nothing would be removed, the
    model's heads depend on one another or an attention shares its weights with another module, BackendError where
    attention does not pass through the door. Nothing has changed then.
    """
    known = describe(model)
    _check_apart(model)
    plan = make_plan(known.stated, heads=by_stack(heads), before=known.before)
    pruning = plan.compact
    why = cannot_shrink(known.stated, pruning)
    if why:
        raise ConversionError(f'{type(model).__name__}: {why}; valid: an export with form="padded"')
    then = shrunk(known.stated, pruning)
    parameters = dict(model.named_parameters())
    before, after = (attention_items(known.family, stack, parameters) for stack in (known.stack, then))
    smaller = PrunedWeights(_canonical(before, parameters), known.stack, plan, pruning)
    with torch.inference_mode(mode=False), torch.no_grad():  # or the model could not be trained afterwards
        tensors = {name: put_together(item, smaller).contiguous() for name, item in after.items()}
    changed = uniform_settings(model_settings(model), known.stated, then)
    resize(model, known.family, known.stack, then, tensors, told=changed is not None)
    # The configuration's own counts where these can tell it all, and the record in any case.
    for key, value in (changed or {}).items():
        setattr(model.config, key, value)
    form = "compact" if changed is None else "padded" if then == known.stated else "uniform"
    pruning = Pruning(form, pruning.layers)
    setattr(model.config, KEY, pruning.as_json())
    return Pruned(plan, pruning, then, known.stack, why_nothing(plan, known.stated))


def _check_apart(model: nn.Module) -> None:
    """Raises ConversionError where weights of an attention are another module's too: a head cannot leave one of them."""
    passing = find_attentions(model).paths.values()

    def owner(name: str) -> str:
        return next((path for path in passing if name.startswith(f"{path}.")), "")

    groups = overlapping(dict(model.named_parameters(remove_duplicate=False)))
    shared = next((names for names in groups if any(map(owner, names))), None)
    if shared is None:
        return
    first, second = sorted(shared, key=lambda name: not owner(name))[:2]
    modules = dict.fromkeys(owner(name) or name.rpartition(".")[0] for name in (first, second))
    raise ConversionError(
        f"{type(model).__name__}: weights are shared in {' and '.join(modules)} ({first} and {second} are one piece of "
        "memory), so a head cannot leave one without the other; valid: give each a copy of its own first, "
        "nn.Parameter(weight.clone())"
    )


def _canonical(items: Mapping[str, Expected], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the attention by canonical name; where each head has a parameter of its own, these put together."""
    found: dict[str, Tensor] = {}
    by_head: dict[str, dict[int, Tensor]] = {}
    for name, item in items.items():
        for weight, tensor in take_apart(item, parameters[name].detach()).items():
            if item.index < 0:
                found[weight] = tensor
            else:
                by_head.setdefault(weight, {})[item.index] = tensor
    return found | {weight: torch.stack([each[at] for at in sorted(each)]) for weight, each in by_head.items()}


class PrunedWeights(Mapping[str, Tensor]):
    """The weights of a model without the heads that a plan removes, by canonical name, made when they are asked for.

    weights  all or some weights of the model as it is, which `stack` describes
    """

    def __init__(self, weights_now: Mapping[str, Tensor], stack: StackSpec, plan: Plan, pruning: Pruning) -> None:
        self._weights = weights_now
        self._inventory = {weight.name: weight for weight in weights(stack)}
        self._rows: dict[str, tuple[LayerHeads, LayerHeads, bool]] = {}
        for role, layer, spec in places(stack):
            then = pruning.at(role, layer)
            if then is not None:
                together = spec.qk_norm is not None and spec.qk_norm.scope == "full"
                self._rows[prefix_of(role, layer)] = (plan.held[role, layer], then, together)
        self._biases = {
            f"{role}.relative_bias": next(rows for begin, rows in self._rows.items() if begin.startswith(role))
            for role in ("encoder", "decoder")
            if f"{role}.relative_bias" in self._inventory
        }
        self._padded = pruning.form == "padded"

    def __getitem__(self, name: str) -> Tensor:
        tensor, weight = self._weights[name], self._inventory[name]
        if name in self._biases:
            held, then, _ = self._biases[name]
            return tensor if self._padded else _taken(weight, tensor, held, then)
        begin = prefix_in(name)
        if begin not in self._rows:
            return tensor
        held, then, together = self._rows[begin]
        own = name.removeprefix(begin)
        if own == "sinks" and self._padded:
            return tensor
        if together and own.split(".")[0] in ("q", "k", "q_norm", "k_norm"):
            return tensor  # what the norm over all heads reads must stay; the padded form is the only one here
        return _taken(weight, tensor, held, then)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _taken(weight: Weight, tensor: Tensor, held: LayerHeads, then: LayerHeads) -> Tensor:
    """The rows of each axis that runs over heads which `then` has slots for; zeros where a slot is empty."""
    for dim, axis in enumerate(weight.axes.split()):
        if axis in ("h", "y"):
            tensor = _rows(tensor, dim, held.slots, then.slots)
        elif axis == "k":
            tensor = _rows(tensor, dim, held.kv_slots, then.kv_slots)
    return tensor


def _rows(tensor: Tensor, dim: int, now: Sequence[int], then: Sequence[int]) -> Tensor:
    if tuple(now) == tuple(then):
        return tensor
    at = [now.index(slot) if slot >= 0 else -1 for slot in then]
    found = tensor.index_select(dim, torch.tensor([max(index, 0) for index in at], device=tensor.device))
    empty = [place for place, index in enumerate(at) if index < 0]
    if empty:
        found.index_fill_(dim, torch.tensor(empty, device=tensor.device), 0)
    return found


def mask(model: nn.Module, heads: Heads) -> Callable[[Call, Tensor], Tensor]:
    """A gate for the door that makes the outputs of `heads` zeros: what a model without them is measured against.

    heads  original numbers; of a model that lost heads before, those that it still has are found by its record

    Raises as `prune` does for addresses, and BackendError where attention does not pass through the door.
    """
    known = describe(model)
    plan = make_plan(known.stated, by_stack(heads), before=known.before)
    rows: dict[str, list[int]] = {}
    modules = modules_of(model, known)
    for head in plan.new:
        place = plan.place(head)
        rows.setdefault(modules[place], []).append(plan.held[place].slots.index(head.head))

    def gate(call: Call, outputs: Tensor) -> Tensor:
        gone = rows.get(call.path)
        if not gone:
            return outputs
        return outputs.index_fill(1, torch.tensor(gone, device=outputs.device), 0)

    return gate


def modules_of(model: nn.Module, known: Described) -> dict[tuple[str, int], str]:
    """Names of the attention modules of `model` by (role, layer).

    Raises BackendError for an attention that does not pass through the door.
    """
    passing = sorted(find_attentions(model).paths.values())
    items = attention_items(known.family, known.stack, dict(model.named_parameters()))
    found = {}
    for role, layer in now_held(known.stack):
        begin = prefix_of(role, layer)
        names = [name for name, item in items.items() if any(part.name.startswith(begin) for part in item.parts)]
        path = next((path for path in passing if any(name.startswith(f"{path}.") for name in names)), None)
        if path is None:
            raise BackendError(f"{type(model).__name__}: attention {begin.rstrip('.')} does not pass through the door")
        found[role, layer] = path
    return found
