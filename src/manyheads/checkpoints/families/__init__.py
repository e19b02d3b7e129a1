"""The table of families: which module holds which, so that a look-up imports only the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from manyheads.checkpoints.family import Family

__all__ = ["MODULES", "family", "named", "names", "recognise"]

# Module: the `model_type` values that its families read.
MODULES: dict[str, tuple[str, ...]] = {
    "apertus": ("apertus", "apertus1p5_text"),
    "arcee": ("arcee",),
    "bart": ("bart", "plbart", "mvp", "blenderbot-small", "blenderbot", "mbart", "pegasus", "m2m_100", "marian"),
    "bert": ("bert", "roberta", "xlm-roberta", "camembert", "distilbert"),
    "bloom": ("bloom",),
    "cohere": ("cohere", "cohere2"),
    "deepseek": ("deepseek", "deepseek_v2", "deepseek_v3"),
    "eurobert": ("eurobert",),
    "exaone4": ("exaone4",),
    "falcon": ("falcon", "RefinedWeb", "RefinedWebModel"),
    "gemma": ("gemma", "gemma2", "gemma3_text", "gemma3"),
    "glm": ("glm", "glm4"),
    "gpt2": ("gpt2",),
    "gpt_neox": ("gpt_neox",),
    "gpt_oss": ("gpt_oss",),
    "gptj": ("gptj",),
    "granite": ("granite",),
    "llama": ("llama", "code_llama"),
    "minicpm3": ("minicpm3",),
    "mistral": ("mistral",),
    "mixtral": ("mixtral",),
    "modernbert": ("modernbert",),
    "mpt": ("mpt",),
    "nomic_bert": ("nomic_bert",),
    "olmo": ("olmo", "olmo2", "olmo3", "olmoe"),
    "opt": ("opt",),
    "persimmon": ("persimmon",),
    "phi": ("phi",),
    "phi3": ("phi3",),
    "qwen2": ("qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen2_moe"),
    "qwen3": ("qwen3", "qwen3_vl_text", "qwen3_moe"),
    "qwen3_next": ("qwen3_next",),
    "seed_oss": ("seed_oss",),
    "smollm3": ("smollm3",),
    "stablelm": ("stablelm",),
    "starcoder2": ("starcoder2",),
    "t5": ("t5", "mt5"),
    "whisper": ("whisper",),
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
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("qwen3_next", ("linear_num_key_heads", "linear_num_value_heads", "linear_conv_kernel_dim")),
    ("deepseek_v2", ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")),
    ("whisper", ("num_mel_bins", "encoder_layers", "decoder_layers")),
    ("t5", ("relative_attention_num_buckets", "d_kv", "d_ff", "num_layers")),
    ("bart", ("encoder_layers", "decoder_layers", "encoder_attention_heads", "d_model")),
    ("mpt", ("attn_config", "n_heads", "d_model")),
    ("falcon", ("new_decoder_architecture", "hidden_size")),
    ("gptj", ("rotary_dim", "n_embd", "n_layer", "n_head")),
    ("gpt2", ("n_positions", "n_embd", "n_layer", "n_head")),
    ("bert", ("type_vocab_size", "hidden_size", "intermediate_size")),
)


def named(name: str) -> Family:
    """The family called `name`, as `ModelConfig.family` has it."""
    found = family(name)
    if found is not None:
        return found
    from manyheads.checkpoints.families.generic import GENERIC

    return GENERIC


def recognise(config: Mapping[str, Any]) -> Family:
    """The family whose telling keys `config` has; the plain Llama-like decoder where none has.

    The defaults of the family's class are not taken over: they belong to its name, and an absent size is an error.
    """
    for model_type, signs in _SIGNS:
        found = family(model_type) if all(config.get(sign) for sign in signs) else None
        if found is not None:
            return replace(found, defaults={})
    from manyheads.checkpoints.families.generic import GENERIC

    return GENERIC
