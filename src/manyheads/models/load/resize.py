"""A transformers model whose attention modules have other numbers of heads than its configuration says.

Transformers builds every layer with the same counts. Here parameters are given the shapes that a smaller model's
inventory has, by the same tables that say how files store it, and the counts that a module keeps follow them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layout import Expected
from manyheads.checkpoints.pruned import places
from manyheads.checkpoints.verify import located
from manyheads.errors import ConversionError
from manyheads.models.door.attentions import find_attentions
from manyheads.spec.attention import AttentionSpec
from manyheads.spec.kv import Heads
from manyheads.spec.stack import StackSpec

__all__ = ["attention_items", "resize", "shrinking"]

# What modules of transformers call their counts, and what each is of an attention.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_GROUPS = ("num_key_value_groups",)
_WIDTHS = ("all_head_size", "inner_dim", "split_size")


def attention_items(family: Family, stack: StackSpec, names: Mapping[str, Any]) -> dict[str, Expected]:
    """How the parameters of a model's attention are made of canonical weights, by their names among `names`.

    Everything else is left out of the description first: of mixtures, modules hold other tensors than files do.
    """
    bare = replace(
        stack,
        stacks=tuple(
            replace(each, blocks=tuple(replace(b, mlp=None) if b.attentions else b for b in each.blocks))
            for each in stack.stacks
        ),
    )
    items = located(family, bare, names)
    return {name: item for name, item in items.items() if any(part.part == "attention" for part in item.parts)}


def resize(
    model: nn.Module, family: Family, now: StackSpec, then: StackSpec, tensors: Mapping[str, Tensor] | None = None,
    *, told: bool = False,
) -> None:  # fmt: skip
    """Give the attention of `model`, which is `now`, the sizes of `then`, in place.

    tensors  the new parameters by name; without them, parameters of another shape become empty ones, to be loaded
    told     the caller changes the counts of the configuration too

    Raises ConversionError, one line, where a module's code takes its counts from a configuration that is not `told`.
    """
    parameters = dict(model.named_parameters())
    before, after = attention_items(family, now, parameters), attention_items(family, then, parameters)
    missing = [name for name in before if name not in parameters]
    if missing:
        raise ConversionError(
            f"{type(model).__name__}: has no parameter {missing[0]}, which files of {family.name} hold"
        )
    _resize_modules(model, before, now, then, told=told)
    _shorten(model, before.keys() - after.keys())
    for name, item in after.items():
        old = parameters[name]
        if tensors is None and tuple(old.shape) == item.shape:
            continue
        new = torch.empty(item.shape, dtype=old.dtype, device=old.device) if tensors is None else tensors[name]
        _replace(model, name, new.to(old.device, old.dtype), requires_grad=old.requires_grad)


def _shorten(model: nn.Module, gone: Iterable[str]) -> None:
    """Where each head has a module of its own in a list, the list ends with the last head that is left."""
    for name in gone:
        above, _, at = name.rpartition(".")[0].rpartition(".")
        holder = model.get_submodule(above)
        if isinstance(holder, nn.ModuleList):
            del holder[int(at) :]
            around = model.get_submodule(above.rpartition(".")[0])
            if hasattr(around, "num_heads"):
                around.num_heads = len(holder)


def shrinking(kind: type[Any], family: Family, now: StackSpec, then: StackSpec) -> type[Any]:
    """A class that makes models of `kind` whose attention has the sizes of `then`, for `from_pretrained`."""

    # transformers hands on whatever a class's own constructor takes.
    def made(self: Any, config: Any, *arguments: Any, **options: Any) -> None:
        kind.__init__(self, config, *arguments, **options)
        resize(self, family, now, then)

    return type(kind.__name__, (kind,), {"__init__": made, "__module__": kind.__module__})


def _resize_modules(
    model: nn.Module, items: Mapping[str, Expected], now: StackSpec, then: StackSpec, *, told: bool
) -> None:
    """Look at every module first, so that a refusal leaves all of them as they were."""
    modules = dict(model.named_modules())
    found: list[tuple[nn.Module, str, int]] = []
    attentions = set(find_attentions(model).paths.values())
    smaller = {(stage, layer): spec for stage, layer, spec in places(then)}
    for stage, layer, spec in places(now):
        new = smaller[stage, layer]
        if new == spec:
            continue
        begin = f"{'decoder' if stage == 'cross' else stage}.layers.{layer}.{'cross' if stage == 'cross' else 'self'}."
        names = [name for name, item in items.items() if any(part.name.startswith(begin) for part in item.parts)]
        path = next((path for path in sorted(attentions) if any(name.startswith(f"{path}.") for name in names)), None)
        if path is None:
            raise ConversionError(f"{type(model).__name__}: no module that passes through the door holds {names[0]}")
        module = modules[path]
        if not told and _reads_config(type(module)):
            raise ConversionError(
                f"{type(module).__name__} takes its head counts from the configuration of the whole model, which "
                "cannot say these; valid: the same number in each layer, or an export in the form padded"
            )
        found += [(module, name, count) for name, count in _counts(module, spec, new)]
    for module, name, count in found:
        setattr(module, name, count)


def _kv_heads(spec: AttentionSpec) -> int:
    return spec.kv.num_kv_heads if isinstance(spec.kv, Heads) else spec.num_heads


def _reads_config(kind: type[nn.Module]) -> bool:
    source = inspect.getsource(kind.forward)
    return any(f"config.{name}" in source for name in (*_HEADS, *_KV_HEADS))


def _counts(module: nn.Module, now: AttentionSpec, then: AttentionSpec) -> Iterator[tuple[str, int]]:
    """What a module keeps of its counts, and what each becomes."""
    kinds: tuple[tuple[tuple[str, ...], Callable[[AttentionSpec], int]], ...] = (
        (_HEADS, lambda spec: spec.num_heads),
        (_KV_HEADS, _kv_heads),
        (_GROUPS, lambda spec: spec.num_heads // _kv_heads(spec)),
        (_WIDTHS, lambda spec: spec.num_heads * spec.head_dim),
    )
    for names, count in kinds:
        for name in names:
            held = getattr(module, name, None)
            if held is not None and held != count(now):
                raise ConversionError(f"{type(module).__name__}.{name} is {held}, where {count(now)} was expected")
            if held is not None:
                yield name, count(then)


def _replace(model: nn.Module, name: str, new: Tensor, *, requires_grad: bool) -> None:
    """The parameter `name` becomes `new`, and the sizes that its module tells of itself follow."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    module._parameters[leaf] = nn.Parameter(new, requires_grad=requires_grad)
    if leaf != "weight" or new.dim() != 2:
        return
    rows, columns = new.shape
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = rows, columns
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = rows, columns
    elif type(module).__name__ == "Conv1D":
        module.nx, module.nf = rows, columns
