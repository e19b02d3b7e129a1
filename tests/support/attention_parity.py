"""One attention module of a transformers model beside our layer: the same inputs, the same pieces, both outputs.

A model runs whole, in chunks or padded, with transformers' own cache; what enters and leaves each attention module is
noted. Our layer gets the same tokens in the same pieces, with a cache of ours, and transformers' own cos and sin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from manyheads.layer import Attention
from manyheads.layer.caches import Cache, cache_for
from manyheads.models.store.read import Store, open_store
from manyheads.ops import masks
from manyheads.ops import rope as own_rope
from manyheads.spec import AttentionSpec, Bidirectional, Cross, RelativeBuckets
from support import tiny_transformers

__all__ = ["Seen", "listen", "ours", "stored", "wide_casts"]

# Where each family's attention stands: (role, which) and a pattern of the module's name; the layer is its first group.
PLACES = (
    ("encoder", "self", r"(?:model\.)?encoder\.layers\.(\d+)\.self_attn"),
    ("decoder", "self", r"model\.decoder\.layers\.(\d+)\.self_attn"),
    ("decoder", "cross", r"model\.decoder\.layers\.(\d+)\.encoder_attn"),
    ("encoder", "self", r"encoder\.block\.(\d+)\.layer\.0\.SelfAttention"),
    ("decoder", "self", r"decoder\.block\.(\d+)\.layer\.0\.SelfAttention"),
    ("decoder", "cross", r"decoder\.block\.(\d+)\.layer\.1\.EncDecAttention"),
    ("encoder", "self", r"(?:bert\.)?encoder\.layer\.(\d+)\.attention\.self"),
    (
        "decoder",
        "self",
        r"(?:model|transformer|gpt_neox)\.(?:layers|h)\.(\d+)\.(?:self_attn|attn|attention|linear_attn)",
    ),
)


@dataclass
class Seen:
    """The calls of one attention module: tokens in, output, memory, cos and sin."""

    role: str
    which: str
    layer: int
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    memory: Tensor | None = None
    turns: list[tuple[Tensor, Tensor] | None] = field(default_factory=list)

    def widened(self) -> Seen:
        """The same tokens in float64."""
        memory = None if self.memory is None else self.memory.double()
        return replace(self, inputs=[x.double() for x in self.inputs], memory=memory)


def listen(model: nn.Module) -> dict[str, Seen]:
    """Notes of every attention module of `model`, by its name, filled as the model runs."""
    notes: dict[str, Seen] = {}
    for name, module in model.named_modules():
        for role, which, pattern in PLACES:
            found = re.fullmatch(pattern, name)
            if found:
                notes[name] = Seen(role, which, int(found[1]))
                module.register_forward_hook(_note_input(notes[name]), with_kwargs=True)
                out = model.get_submodule(name[: -len("self")] + "output.dense") if name.endswith(".self") else module
                out.register_forward_hook(_note_output(notes[name]))
    return notes


def _note_input(seen: Seen) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        seen.inputs.append(args[0] if args else options["hidden_states"])
        memory = options.get("key_value_states", args[1] if len(args) > 1 and seen.which == "cross" else None)
        seen.memory = memory if memory is not None else seen.memory
        seen.turns.append(options.get("position_embeddings"))

    return hook


def _note_output(seen: Seen) -> Any:
    return lambda module, args, output: seen.outputs.append(output[0] if isinstance(output, tuple) else output)


def stored(name: str, folder: Path, *, dtype: torch.dtype, attention: str, **changes: Any) -> tuple[Any, Store]:
    """The tiny model `name` and its weights by canonical names, through a file as a user would have it."""
    model = tiny_transformers.build(name, dtype=dtype, attention=attention, **changes)
    model.save_pretrained(folder)
    return model, open_store(folder)


def ours(seen: Seen, store: Store, patch: pytest.MonkeyPatch, *, keep: Tensor | None, cached: bool) -> list[Tensor]:
    """The same calls through `Attention`, with its own cache where the model had one."""
    stack = next(stack for stack in store.stack.stacks if stack.role == seen.role)
    block = stack.blocks[seen.layer]
    spec = block.attention if seen.which == "self" else next(a for a in block.attentions if isinstance(a.source, Cross))
    assert spec is not None
    layer = Attention(spec, dtype=seen.inputs[0].dtype)
    layer.load(store.attention(seen.role, seen.layer, seen.which))
    cache = _cache(spec, seen) if cached else None
    done, outputs = 0, []
    table = {}
    if isinstance(spec.positions, RelativeBuckets):
        table = {"table": store.tensor(f"{seen.role}.relative_bias")}
    for x, turn in zip(seen.inputs, seen.turns, strict=True):
        with patch.context() as within:
            if turn is not None:
                within.setattr("manyheads.layer.heads.rope.angles", theirs(turn, spec))
            done += x.shape[1]
            visible = None if keep is None else masks.padding(keep[:, :done] if cached else keep)
            outputs.append(layer(x, seen.memory, cache=cache, visible=visible, **table))
    return outputs


def _cache(spec: AttentionSpec, seen: Seen) -> Cache | None:
    if isinstance(spec.mask, Bidirectional) and not isinstance(spec.source, Cross):
        return None
    x = seen.inputs[0]
    return cache_for(spec, batch=x.shape[0], dtype=x.dtype)


def theirs(turn: tuple[Tensor, Tensor], spec: AttentionSpec) -> Any:
    """transformers' cos and sin in place of ours, which must be the same to what float32 can tell."""
    exact = own_rope.angles

    def angles(positions: Tensor, rope: Any, *, dtype: torch.dtype, length: int | None = None) -> tuple[Tensor, Tensor]:
        half = rope.dim // 2
        found = tuple(part[..., :half].to(dtype) for part in turn)
        for mine, given in zip(exact(positions, rope, dtype=dtype, length=length), found, strict=True):
            if found[0].shape[0] == 1:  # padded rows have positions of their own, which only transformers was told
                torch.testing.assert_close(mine.expand_as(given), given, rtol=0, atol=2e-5)
        return found[0], found[1]

    return angles


def wide_casts(patch: pytest.MonkeyPatch, name: str) -> None:
    """Lift a model's casts to float32: where its code says torch.float32, it gets float64."""

    class Wide:
        float32 = torch.float64

        def __getattr__(self, attribute: str) -> Any:
            return getattr(torch, attribute)

    case = tiny_transformers.CASES[name]["model_type"]
    module = getattr(transformers.models, case)
    patch.setattr(getattr(module, f"modeling_{case}"), "torch", Wide())
