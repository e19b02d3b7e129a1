"""The attention modules of a model, as everything that looks at heads names them: path, stack, layer, and the heads in each.

    modules = ModuleIndex(find_attentions(model))
    with open_door(model, observers=[modules]) as door:
        model(ids)
        modules.called(door)

How many heads a module has is read off its first call: transformers' classes have no attribute that all of them share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.checkpoints.pruned import KEY, LayerHeads, read_record
from manyheads.errors import BackendError, ManyheadsError
from manyheads.heads.address import Head, Heads, addresses, by_layer, check_heads, format_head
from manyheads.models.door.attentions import Attentions
from manyheads.models.door.door import Call, Door
from manyheads.quoting import shown

__all__ = ["AttentionModule", "ModuleIndex", "head_table", "is_cross", "is_decoder", "row_of", "select"]


@dataclass(frozen=True)
class AttentionModule:
    """One attention module. Of one that several layers share there is one: its heads are one set of weights.

    path      its name in the model
    stack     "" in a model of one stack, else "encoder", "decoder" or "cross" where these tell the stacks apart, else what the
              model calls the part that holds it: "vision_tower", "language_model"
    layer     its layer in the stack, from 0
    heads, kv_heads   what the module computes
    pruned    the original heads that a pruned model still has, None where none was removed

    Tables have a column for each original head, so that a column is the number of a head in every one of them.
    """

    path: str
    stack: str
    layer: int
    heads: int
    kv_heads: int
    pruned: LayerHeads | None = None

    @property
    def columns(self) -> int:
        """Heads that it first had."""
        return self.heads if self.pruned is None else self.pruned.heads

    @property
    def computed(self) -> tuple[int, ...]:
        """The original number of each head that the module computes, -1 for a zeroed one."""
        return tuple(range(self.heads)) if self.pruned is None else self.pruned.slots

    @property
    def numbers(self) -> tuple[int, ...]:
        """The original numbers of the heads that are not zeroed, ascending."""
        return tuple(sorted(number for number in self.computed if number >= 0))

    def indices(self, numbers: Iterable[int]) -> list[int]:
        """Where the module computes heads, which it must have."""
        return list(numbers) if self.pruned is None else self.pruned.at(numbers)

    def group_of(self, number: int) -> tuple[int, ...]:
        """The heads that share the key/value head of `number`, itself among them."""
        size = self.heads // self.kv_heads if self.pruned is None else self.pruned.group
        return tuple(one for one in self.numbers if one // size == number // size)

    def head(self, number: int) -> Head:
        """The address of one of its heads."""
        return Head(self.layer, number, self.stack)


class ModuleIndex:
    """The attention modules of a model, and an observer that reads off each call how many heads its module has.

    stacks   {path: stack}, stack by stack, each in the order of its layers; no two modules have one stack and layer
    """

    def __init__(self, attentions: Attentions) -> None:
        paths = {path: attentions.layers[key] for key, path in attentions.paths.items()}
        names, pruned = _stack_names(paths), _pruned_heads(attentions)
        order = list(dict.fromkeys(names[_kind(path)] for path in paths))
        found = sorted(paths, key=lambda path: (order.index(names[_kind(path)]), paths[path]))
        self.stacks = {path: names[_kind(path)] for path in found}
        self._layers = paths
        self._pruned = {path: pruned.get((stack, paths[path])) for path, stack in self.stacks.items()}
        self._called: dict[str, AttentionModule] = {}

    def __call__(self, call: Call, _: Tensor) -> None:
        """Sees one call of attention."""
        self.of(call)

    def of(self, call: Call) -> AttentionModule:
        """The module of a call. ManyheadsError where the record of removed heads speaks of another number of heads,
        BackendError where an earlier call had another number."""
        heads, known = call.q.shape[1], self._called.get(call.path)
        if known is None:
            known = self._called[call.path] = self._seen(call)
        elif known.heads != heads:
            raise BackendError(
                f"{call.path}: this call has {heads} heads and an earlier one had {known.heads}; expected as many in each"
            )
        return known

    def _seen(self, call: Call) -> AttentionModule:
        path, heads, pruned = call.path, call.q.shape[1], self._pruned[call.path]
        if pruned is not None and len(pruned.slots) != heads:
            raise ManyheadsError(
                f"{path} computes {heads} heads, and the record of removed heads in the model's configuration says "
                f"{len(pruned.slots)}; it is of another model, or the heads were changed by other means"
            )
        return AttentionModule(path, self.stacks[path], self._layers[path], heads, call.k.shape[1], pruned)

    @property
    def layers(self) -> set[tuple[str, int]]:
        """(stack, layer) of every module, called or not."""
        return {(stack, self._layers[path]) for path, stack in self.stacks.items()}

    @property
    def seen(self) -> tuple[AttentionModule, ...]:
        """The modules that were called, in order."""
        return tuple(self._called[path] for path in self.stacks if path in self._called)

    @property
    def uncalled(self) -> tuple[str, ...]:
        """Paths of the modules that were not."""
        return tuple(path for path in self.stacks if path not in self._called)

    def called(self, door: Door) -> tuple[AttentionModule, ...]:
        """`seen`. ManyheadsError where that is nothing, or where attention ran past the door."""
        if not self._called:
            raise ManyheadsError("no attention of the model was called through the door, so there is no head to judge")
        if door.outside:
            raise ManyheadsError(
                f"{len(door.outside)} attention modules do not pass through the door ({door.outside[0]}), so their heads "
                "cannot be told from the rest; valid: models whose every attention calls transformers' AttentionInterface"
            )
        return self.seen


def is_cross(stack: str) -> bool:
    """Whether queries and keys of a stack's modules are of different texts."""
    return "cross" in stack.rpartition(".")[2]


def is_decoder(stack: str) -> bool:
    """Whether a stack is called a decoder's."""
    return _word(stack) == "decoder"


def head_table(
    modules: Sequence[AttentionModule], values: Mapping[str, Tensor] | None = None, *, chosen: Mapping[int, Sequence[int]] | None = None
) -> Tensor:  # fmt: skip
    """(modules, columns), float64: a number for each head, NaN where there is none.

    values  by path, one for each head as the module computes them; 0 for the heads of a module without; None: all are NaN
    chosen  {row: its heads} of those that are put in, None for all
    """
    table = torch.full((len(modules), max(module.columns for module in modules)), torch.nan, dtype=torch.float64)
    if values is None:
        return table
    for row, heads in (select(modules, None) if chosen is None else chosen).items():
        found = values.get(modules[row].path)
        table[row, list(heads)] = 0.0 if found is None else found[modules[row].indices(heads)].double()
    return table


def row_of(modules: Sequence[AttentionModule], head: Head) -> int:
    """The row of the module that holds `head`. ManyheadsError where there is none, naming the stacks or heads that there are."""
    stacks = list(dict.fromkeys(module.stack for module in modules))
    if head.stack not in stacks:
        valid = (
            f"valid stacks: {', '.join(stack or 'none' for stack in stacks)}"
            if any(stacks)
            else "valid: addresses without a stack, such as 0:0"
        )
        what = f"stack {shown(head.stack)}" if head.stack else "head without a stack"
        raise ManyheadsError(f"{format_head(head)}: the model has no {what}; {valid}")
    for row, module in enumerate(modules):
        if (module.stack, module.layer) == (head.stack, head.layer) and 0 <= head.head < module.columns:
            if head.head not in module.numbers:
                left = ", ".join(map(str, module.numbers))
                raise ManyheadsError(f"head {format_head(head)} was removed before; its layer still has {left}")
            return row
    raise ManyheadsError(f"there is no head {format_head(head)}; {_valid(modules)}")


def select(modules: Sequence[AttentionModule], heads: Heads | None) -> dict[int, tuple[int, ...]]:
    """{row of `modules`: its heads} of the heads that are asked for; None means all.

    Raises ManyheadsError for a head that does not exist, saying what there is.
    """
    if heads is None:
        return {row: module.numbers for row, module in enumerate(modules)}
    asked = addresses(heads)
    if not asked:
        raise ManyheadsError("an empty list of heads was given; leave it out for all of them")
    if not any(module.stack for module in modules) and len({module.layer for module in modules}) == max(
        module.layer for module in modules
    ) + 1:  # fmt: skip
        counts = [module.columns for module in sorted(modules, key=lambda module: module.layer)]
        check_heads(by_layer(head for head in asked if not head.stack), counts)
    found: dict[int, set[int]] = {}
    for head in asked:
        found.setdefault(row_of(modules, head), set()).add(head.head)
    return {row: tuple(sorted(found[row])) for row in sorted(found)}


def _valid(modules: Sequence[AttentionModule]) -> str:
    said = []
    for stack in dict.fromkeys(module.stack for module in modules):
        layers = [module for module in modules if module.stack == stack]
        most = max(module.columns for module in layers)
        named = f"{stack} " if stack else ""
        said.append(
            f"{named}layers {layers[0].layer} to {layers[-1].layer} with attention have {most} heads, 0 to {most - 1}"
        )
    return "; ".join(said)


def _pruned_heads(attentions: Attentions) -> dict[tuple[str, int], LayerHeads]:
    """What the configuration of a pruned model says of its heads, by stack and layer as they are called here."""
    record = next((found for config in attentions.configs if (found := getattr(config, KEY, None)) is not None), None)
    pruning = read_record(record)
    if pruning is None:
        return {}
    alone = len({stack for stack, _, _ in pruning.layers}) == 1
    return {("" if alone else stack, layer): heads for stack, layer, heads in pruning.layers}


def _kind(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _stack_names(paths: Mapping[str, int]) -> dict[str, str]:
    """A name for each kind of attention module. One stack has none; encoder, decoder and cross are called that where these
    words tell all stacks apart; else a stack is named by the part of the model that holds it, as the model calls it."""
    layers: dict[str, set[int]] = {}
    for path, layer in paths.items():
        layers.setdefault(_kind(path), set()).add(layer)
    stacks: dict[tuple[str, bool], list[str]] = {}
    for kind in layers:
        before, _, inside = kind.partition("#")
        stacks.setdefault((before.rstrip(".") if inside else kind, _crosses(kind)), []).append(kind)
    words = {stack: "cross" if stack[1] else _word(stack[0]) for stack in stacks}
    if len(stacks) == 1:
        named = dict.fromkeys(stacks, "")
    elif all(words.values()) and len(set(words.values())) == len(stacks):
        named = words
    else:
        named = _by_part(list(stacks))
    return {
        kind: name
        for stack, kinds in stacks.items()
        for kind, name in _within(named[stack], {kind: layers[kind] for kind in kinds}).items()
    }


def _crosses(kind: str) -> bool:
    inside = kind.partition("#")[2].lower() or kind.rpartition(".")[2].lower()
    return any(word in inside for word in ("encoder_attn", "encdec", "encoder_decoder", "cross"))


def _word(before: str) -> str:
    words = re.split(r"[._]+", before.lower())
    return next((word for word in ("decoder", "encoder") if word in words), "")


def _by_part(stacks: list[tuple[str, bool]]) -> dict[tuple[str, bool], str]:
    """The parts of each stack's name at which it differs from others; "cross" for the only one that crosses."""
    split = {stack: tuple(stack[0].split(".")) for stack in stacks}
    alone = sum(crossing for _, crossing in stacks) == 1
    found = {}
    for stack, parts in split.items():
        own = [
            part
            for depth, part in enumerate(parts)
            if len({other[depth : depth + 1] for other in split.values() if other[:depth] == parts[:depth]}) > 1
        ]
        found[stack] = "cross" if stack[1] and alone else ".".join([*own, *(["cross"] if stack[1] else [])])
    return found


def _within(stack: str, kinds: Mapping[str, set[int]]) -> dict[str, str]:
    """The kinds of one stack: apart where two stand in one layer, by what a layer calls them."""
    every = [layer for layers in kinds.values() for layer in layers]
    if len(every) == len(set(every)):
        return dict.fromkeys(kinds, stack)
    own = {
        kind: ".".join(part for part in kind.partition("#")[2].split(".") if part not in ("", "#")) for kind in kinds
    }
    return {kind: ".".join(part for part in (stack, name) if part) for kind, name in own.items()}
