"""What is converted: a model that runs, its weights by canonical name, and what it is.

The model may hold its weights, or be built without any: then each layer gets its own from the files for its turn, so that
no more than a layer is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.checkpoints.families import named
from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layout import Expected
from manyheads.checkpoints.reading import Checkpoint, Named, open_model
from manyheads.checkpoints.verify import located
from manyheads.errors import ConversionError
from manyheads.heads.model_spec import describe
from manyheads.models.load.model import Loaded, hushed, load
from manyheads.models.load.resize import attention_items
from manyheads.models.store.patterns import put_together, take_apart
from manyheads.models.store.read import open_store, to_canonical
from manyheads.spec.stack import Moe, StackSpec

__all__ = ["Source", "open_source"]


@dataclass(frozen=True, eq=False)
class Source:
    """A model to convert.

    model      of transformers, in evaluation mode; without weights where `from_files`
    weights    all its weights by canonical name, each made or read when it is asked for
    tokenizer  None where there is none
    """

    model: nn.Module
    family: Family
    stack: StackSpec
    weights: Mapping[str, Tensor]
    tokenizer: Any = None
    from_files: bool = False

    def attention(self, role: str, layer: int, which: str = "self") -> dict[str, Tensor]:
        """The weights of one attention by their names inside it."""
        begin = f"{role}.layers.{layer}.{which}."
        return {name.removeprefix(begin): self.weights[name] for name in self.weights if name.startswith(begin)}

    @contextmanager
    def holding(self, path: str) -> Iterator[None]:
        """While this is open, the module `path` holds its weights."""
        if not self.from_files:
            yield
            return
        items = self._items()
        prefix = f"{path}." if path else ""
        names = [name for name in items if name.startswith(prefix)]
        before = {name: _set(self.model, name, self._tensor(items[name])) for name in names}
        try:
            yield
        finally:
            for name, parameter in before.items():
                _set(self.model, name, parameter)

    def holding_surroundings(self, layers: str) -> None:
        """Give the model for good what stands outside the module `layers` and before the head."""
        if not self.from_files:
            return
        for name, item in self._items().items():
            if not name.startswith(f"{layers}.") and item.parts[0].part != "head":
                _set(self.model, name, self._tensor(item))

    def _tensor(self, item: Expected) -> Tensor:
        canonical = {part.name: self.weights[part.name] for part in item.parts}
        return put_together(item, canonical).to(torch.float32)

    def _items(self) -> dict[str, Expected]:
        parameters = dict(self.model.named_parameters())
        return {n: item for n, item in located(self.family, self.stack, parameters).items() if n in parameters}


def _set(model: nn.Module, name: str, tensor: Tensor) -> nn.Parameter:
    """Puts a parameter in the place of another, and returns that."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    before: nn.Parameter = module._parameters[leaf]  # type: ignore[assignment]
    new = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.contiguous(), requires_grad=False)
    module._parameters[leaf] = new
    return before


def open_source(
    source: Named | Checkpoint | Loaded | nn.Module, *, layer_by_layer: bool = False, tokenizer: Any = None
) -> Source:
    """`source` as something to convert.

    source          a folder, file or hub id, a model that was loaded, or a transformers model in memory
    layer_by_layer  of a folder or file: do not load the model, but each layer for its turn

    Raises CheckpointError for what cannot be read or is not understood, ConversionError for a mixture layer by layer.
    """
    if isinstance(source, nn.Module):
        known = describe(source)
        weights = _in_memory(source, known.family, known.stack)
        return Source(source.eval(), known.family, known.stack, weights, tokenizer)
    if isinstance(source, Loaded):
        return _of_loaded(source)
    checkpoint = open_model(source)
    if not layer_by_layer:
        return _of_loaded(load(checkpoint))
    stack = checkpoint.stack
    if any(isinstance(block.mlp, Moe) for each in stack.stacks for block in each.blocks):
        raise ConversionError("a mixture of experts is not run layer by layer from its files; load it whole")
    store = open_store(checkpoint)
    return Source(_without_weights(checkpoint), store.family, stack, store, tokenizer, from_files=True)


def _of_loaded(loaded: Loaded) -> Source:
    store = open_store(loaded.checkpoint)
    family = named(loaded.checkpoint.family)  # of the modules: a GGUF file has names of its own
    return Source(loaded.model, family, store.stack, store, loaded.tokenizer)


def _in_memory(model: nn.Module, family: Family, stack: StackSpec) -> Mapping[str, Tensor]:
    """Canonical weights that share the memory of the model's own; of what modules hold otherwise than files, attention only."""
    state = {name: tensor.detach() for name, tensor in model.named_parameters()}
    items = located(family, stack, state)
    if all(name in state and tuple(state[name].shape) == item.shape for name, item in items.items()):
        found: dict[str, Tensor] = {}
        for name, item in items.items():
            if item.index >= 0:
                return to_canonical(family, stack, state)
            found.update(take_apart(item, state[name]))
        return found
    attention = attention_items(family, stack, state)
    made: dict[str, Tensor] = {}
    for name, item in attention.items():
        made.update(take_apart(item, state[name]))
    return made


def _without_weights(checkpoint: Checkpoint) -> nn.Module:
    """The model as transformers builds it: its parameters without memory, its tables of angles computed."""
    import transformers
    from accelerate import init_empty_weights

    folder = checkpoint.located.folder
    with hushed(), init_empty_weights(include_buffers=False):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        encoder = checkpoint.stack.decoder is None or checkpoint.stack.head == "none"
        kind = transformers.AutoModel if encoder else transformers.AutoModelForCausalLM
        model: nn.Module = kind.from_config(config, trust_remote_code=False)
    return model.eval()
