"""How a regrouped model can be written: its own class with fewer KV heads where that can be, else its KV heads repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manyheads.convert.record import Host
from manyheads.errors import ConversionError
from manyheads.heads.model_spec import stated_stack
from manyheads.models.store.head_counts import uniform_settings
from manyheads.spec.stack import StackSpec

__all__ = ["ModelForm", "choose_form"]

_SAME_CLASS = "its own class, with fewer KV heads"
_REPEATED = "its own class has no count of KV heads, so each is repeated to the old count: loads, and saves nothing"
_ENCODER = "its own class, with each KV head repeated to the old count; an encoder keeps no cache"


@dataclass(frozen=True)
class ModelForm:
    """settings  config.json; `stack`: what that describes; `repeated`: whether KV heads are repeated; `hosts`: what loads it"""

    settings: Mapping[str, Any]
    stack: StackSpec
    repeated: bool
    hosts: tuple[Host, ...]


def choose_form(settings: Mapping[str, Any], then: StackSpec, *, source: str = "config") -> ModelForm:
    """The form of a model of configuration `settings` whose attentions become those of `then`.

    Raises ConversionError where the layers differ in their counts, which no stock class can say.
    """
    plain = {key: value for key, value in settings.items() if key != "_name_or_path"}
    stated = stated_stack(settings, source=source)
    if then == stated:
        return ModelForm(plain, stated, repeated=False, hosts=_hosts(_SAME_CLASS, saves=stated.decoder is not None))
    changed = uniform_settings(plain, stated, then)
    if changed is not None:
        return ModelForm({**plain, **changed}, then, repeated=False, hosts=_hosts(_SAME_CLASS, saves=True))
    counts = {attention.kv for block, _ in then.main.groups for attention in block.attentions}
    if len(counts) > 1:
        raise ConversionError(
            f"{source}: its layers would have different counts of KV heads, and no class of transformers holds these; valid: one "
            "count for all layers"
        )
    encoder = stated.decoder is None
    return ModelForm(plain, stated, repeated=True, hosts=_hosts(_ENCODER if encoder else _REPEATED, saves=False))


def _hosts(how: str, *, saves: bool) -> tuple[Host, ...]:
    names = ("transformers", "vLLM", "llama.cpp")
    return tuple(Host(name, loads=True, small_cache=saves, tried=name == names[0], how=how) for name in names)
