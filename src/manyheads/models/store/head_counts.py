"""Configurations that say other counts of heads, tried on transformers' own class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyheads.checkpoints.config import read_config
from manyheads.checkpoints.pruned import places
from manyheads.errors import CheckpointError
from manyheads.spec.attention import AttentionSpec
from manyheads.spec.kv import State
from manyheads.spec.stack import StackSpec

__all__ = ["softmax_attentions", "uniform_settings"]

_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")


def uniform_settings(settings: Mapping[str, Any], stated: StackSpec, then: StackSpec) -> dict[str, Any] | None:
    """The settings that turn a configuration of `stated` into one of `then`, None where no counts can say it.

    Tried by reading the changed configuration and by transformers' own class: a family that derives the size of a head
    from the number of heads, or whose class refuses the counts, has no way to say it.
    """
    counts = {(spec.num_heads, getattr(spec.kv, "num_kv_heads", spec.num_heads)) for spec in softmax_attentions(then)}
    if len(counts) != 1:
        return None
    heads, kv_heads = counts.pop()
    sizes = {spec.head_dim for spec in softmax_attentions(stated)}
    changed: dict[str, Any] = {key: heads for key in _HEADS if key in settings}
    changed |= {key: kv_heads for key in _KV_HEADS if settings.get(key) is not None}
    if heads != kv_heads and "num_key_value_heads" not in settings:
        changed["num_key_value_heads"] = kv_heads
    if len(sizes) == 1 and "d_kv" not in settings and "kv_lora_rank" not in settings:
        changed["head_dim"] = sizes.pop()
    return changed if _says({**settings, **changed}, then) else None


def softmax_attentions(stack: StackSpec) -> list[AttentionSpec]:
    """The attentions whose heads can go: all but the linear ones."""
    return [spec for _, _, spec in places(stack) if not isinstance(spec.kv, State)]


def _says(settings: Mapping[str, Any], stack: StackSpec) -> bool:
    """Whether a configuration describes `stack`, to us and once transformers' class has read it."""
    import transformers

    try:
        if read_config(settings).stack != stack:
            return False
        kind = transformers.CONFIG_MAPPING[str(settings.get("model_type"))]
        own = kind.from_dict(dict(settings))
        return not _derives_head_dim(own, stack) and read_config(own.to_dict()).stack == stack
    except CheckpointError:
        return False
    except Exception:  # noqa: BLE001  each class of transformers refuses counts in its own way
        return False


def _derives_head_dim(config: Any, stack: StackSpec) -> bool:
    """Whether modules would be built with another head size: what a class does not know, it keeps and does not use."""
    import torch
    import transformers

    for name in config.architectures or ():
        kind = getattr(transformers, name, None)
        if kind is None:
            continue
        with torch.device("meta"):
            model = kind(config)
        from manyheads.checkpoints.families import named
        from manyheads.models.load.resize import attention_items

        parameters = dict(model.named_parameters())
        family = named(read_config(config.to_dict()).family)
        items = attention_items(family, stack, parameters)
        return any(name in parameters and tuple(parameters[name].shape) != item.shape for name, item in items.items())
    return False
