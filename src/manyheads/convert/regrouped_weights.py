"""The weights of a regrouped model by canonical name: what was changed from a file beside, all else from the source."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.pruned import places, prefix_in, prefix_of, with_attentions
from manyheads.convert.head_weights import HeadWeights
from manyheads.errors import ConversionError
from manyheads.models.load.resize import attention_items
from manyheads.models.store.patterns import put_together
from manyheads.spec.attention import AttentionSpec
from manyheads.spec.kv import Heads
from manyheads.spec.stack import StackSpec

__all__ = ["RegroupedWeights", "put_into_model", "regrouped_stack", "repeated", "repeated_in_place"]

_OVER_KV_HEADS = frozenset({"k", "k.bias", "v", "v.bias"})


class RegroupedWeights(Mapping[str, Tensor]):
    """All weights of a model whose attentions were changed; a layer's new ones lie in a temporary file until they are asked for.

    `add` takes what a layer became, in the types that its weights had. The file goes with the last reference to this.
    """

    def __init__(self, before: Mapping[str, Tensor]) -> None:
        self._before = before
        self._folder = Path(tempfile.mkdtemp(prefix="manyheads-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._homes: dict[str, Path] = {}

    def add(self, prefix: str, before: Mapping[str, Tensor], weights: HeadWeights) -> None:
        """What the attention `prefix` ("decoder.layers.3.self.") has now, where it had `before`."""
        from safetensors.torch import save_file

        path = self._folder / f"{prefix}safetensors"
        made = {
            prefix + name: tensor.to(before[name].dtype).contiguous().clone()
            for name, tensor in weights.tensors.items()
            if tuple(tensor.shape) != tuple(before[name].shape)
            or not torch.equal(tensor, before[name].to(tensor.dtype))
        }
        if made:
            save_file(made, path)
        self._homes |= dict.fromkeys(made, path)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._homes:
            return self._before[name]
        from safetensors import safe_open

        with safe_open(self._homes[name], framework="pt") as file:
            found: Tensor = file.get_tensor(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._before)

    def __len__(self) -> int:
        return len(self._before)


def regrouped_stack(stack: StackSpec, kv_heads: Mapping[tuple[str, int], int]) -> StackSpec:
    """`stack` with other numbers of KV heads, by (role, layer); "cross" is the role of cross-attention."""

    def changed(spec: AttentionSpec, role: str, layer: int) -> AttentionSpec:
        count = kv_heads.get((role, layer))
        if count is None or not isinstance(spec.kv, Heads):
            return spec
        return replace(spec, kv=replace(spec.kv, num_kv_heads=count))

    return with_attentions(stack, changed)


def repeated(weights: Mapping[str, Tensor], now: StackSpec, then: StackSpec) -> Mapping[str, Tensor]:
    """Weights of `now` with their KV heads repeated, as `then` has them: the same function, to the bit.

    Query head h reads KV head h // (H/K), so each is repeated in its place.
    """
    return _Repeated(weights, now, then)


class _Repeated(Mapping[str, Tensor]):
    def __init__(self, weights: Mapping[str, Tensor], now: StackSpec, then: StackSpec) -> None:
        self._weights = weights
        self._kv_heads: dict[str, int] = {}
        later = {(role, layer): spec for role, layer, spec in places(then)}
        for role, layer, spec in places(now):
            other = later[role, layer]
            if isinstance(spec.kv, Heads) and isinstance(other.kv, Heads):
                _check_multiple(spec.kv.num_kv_heads, other.kv.num_kv_heads)
                self._kv_heads[prefix_of(role, layer)] = other.kv.num_kv_heads

    def __getitem__(self, name: str) -> Tensor:
        begin, tensor = prefix_in(name), self._weights[name]
        if begin not in self._kv_heads:
            return tensor
        return repeated_in_place(name.removeprefix(begin), tensor, self._kv_heads[begin])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def repeated_in_place(own: str, tensor: Tensor, kv_heads: int) -> Tensor:
    """A weight by its name inside an attention; with `kv_heads` KV heads, each repeated in its place, where it runs over these."""
    per_head = own.startswith("k_norm.") and tensor.dim() > 1
    over_kv_heads = own in _OVER_KV_HEADS or per_head
    return tensor.repeat_interleave(kv_heads // tensor.shape[0], 0) if over_kv_heads else tensor


def _check_multiple(now: int, then: int) -> None:
    if then % now:
        raise ConversionError(f"{now} KV heads cannot be repeated to {then}; valid: a multiple of {now}")


@torch.no_grad()
def put_into_model(
    model: nn.Module, family: Family, stack: StackSpec, weights: Mapping[str, Tensor], now: StackSpec
) -> None:
    """Give the attention of `model`, which is `stack`, regrouped weights of `now`, each KV head repeated as often as its
    modules expect: it computes what the smaller model computes, and holds what it always held.

    ConversionError where the new number of KV heads does not divide the old one.
    """
    whole = repeated(weights, now, stack)
    parameters = dict(model.named_parameters())
    for name, item in attention_items(family, stack, parameters).items():
        canonical = {part.name: whole[part.name] for part in item.parts}
        parameters[name].copy_(put_together(item, canonical).reshape(parameters[name].shape))
