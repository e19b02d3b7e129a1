"""The table of families: which module holds which, so that a look-up imports only the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from manyheads.checkpoints.family import Family

__all__ = ["MODULES", "family", "named", "names", "recognise"]

# Module: the `model_type` values that its families read.
MODULES: dict[str, tuple[str, ...]] = {
    "bloom": ("bloom",),
    "cohere": ("cohere", "cohere2"),
    "deepseek": ("deepseek", "deepseek_v2", "deepseek_v3"),
    "falcon": ("falcon", "RefinedWeb", "RefinedWebModel"),
    "gemma": ("gemma", "gemma2", "gemma3_text", "gemma3"),
    "gpt2": ("gpt2",),
    "gpt_neox": ("gpt_neox",),
    "gpt_oss": ("gpt_oss",),
    "gptj": ("gptj",),
    "granite": ("granite",),
    "llama": ("llama", "code_llama"),
    "minicpm3": ("minicpm3",),
    "mistral": ("mistral",),
    "mixtral": ("mixtral",),
    "mpt": ("mpt",),
    "olmo": ("olmo", "olmo2", "olmo3", "olmoe"),
    "opt": ("opt",),
    "phi": ("phi",),
    "phi3": ("phi3",),
    "qwen2": ("qwen2", "qwen2_moe"),
    "qwen3": ("qwen3", "qwen3_moe"),
    "qwen3_next": ("qwen3_next",),
}

_MODULE_OF = {model_type: module for module, types in MODULES.items() for model_type in types}


def names() -> tuple[str, ...]:
    """Every `model_type` that is known."""
    return tuple(_MODULE_OF)


def family(model_type: str) -> Family | None:
    """The family of a `model_type`, None where it is not known."""
    module = _MODULE_OF.get(model_type)
    if module is None:
        return None
    found: tuple[Family, ...] = import_module(f"{__name__}.{module}").FAMILIES
    return next(each for each in found if model_type in each.model_types)


# What gives a family away when the model_type does not: keys that only it has. The first row whose keys are all there
# wins.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = ()


def named(name: str) -> Family:
    """The family called `name`, as `ModelConfig.family` has it."""
    found = family(name)
    if found is not None:
        return found
    from manyheads.checkpoints.families.generic import GENERIC

    return GENERIC


def recognise(config: Mapping[str, Any]) -> Family:
    """The family whose telling keys `config` has; the plain Llama-like decoder where none has."""
    for model_type, signs in _SIGNS:
        if all(config.get(sign) for sign in signs):
            found = family(model_type)
            if found is not None:
                return found
    from manyheads.checkpoints.families.generic import GENERIC

    return GENERIC
