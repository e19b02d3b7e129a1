"""The table of families: which module holds which, so that a look-up imports only the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from manyheads.checkpoints.family import Family

__all__ = ["LEFT_OUT", "MISLEADING", "MODULES", "family", "named", "names", "recognise"]

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

# Models whose fields would be read as another kind's, and what is different in them.
_CLIP = "its MLP has no gate, its positions are learned, and it compares texts with images"
_NO_GATE = "its MLP has no gate"
_CODEBOOKS = "it has a table of tokens for each codebook of sound"
_IMAGES = "it reads images, not tokens"
_LAYOUT = "it also embeds where words stand on a page"
_NARROW = "its embeddings are narrower than the model"
_NO_POOLER = "it is BERT without a pooler"
_SOUND = "it reads sound, not tokens"

MISLEADING = {
    "aimv2_text_model": "its positions are learned, and it compares texts with images",
    "albert": "all its layers share one set of weights",
    "aria_text": "its shared experts are counted in a way of their own",
    "bert-generation": "its MLP has no gate, and it has biases everywhere",
    "biogpt": _NO_GATE,
    "blip_text_model": "it has biases, learned positions and, in some uses, attention to images",
    "chameleon": "its tokenizer of images is a part of it, and its heads have norms with shifts",
    "clip_text_model": _CLIP,
    "clipseg_text_model": _CLIP,
    "clvp_encoder": "it is an encoder of speech and text with a projection behind it",
    "cosmos3_edge_text": _NO_GATE,
    "csm": "it has a second decoder, over codebooks of sound",
    "csm_depth_decoder_model": _CODEBOOKS,
    "ctrl": "its MLP has a width of its own (dff)",
    "deberta": "its attention is disentangled: positions have keys and queries of their own",
    "deberta-v2": "its attention is disentangled: positions have keys and queries of their own",
    "deepseek_ocr2_encoder": _IMAGES,
    "dia_encoder": "it is an encoder, and would be read as a decoder",
    "diffllama": "its attention is the difference of two softmaxes",
    "dpr": _NO_POOLER,
    "electra": _NARROW,
    "esmc": "it is an encoder, and would be read as a decoder",
    "flava_image_model": _IMAGES,
    "git": "its image encoder is a part of it that no text_config sets apart",
    "groupvit_text_model": _CLIP,
    "gte": "its positions are rotary and its MLP is gated",
    "higgs_audio_v2": "each of its layers has a second MLP, for sound",
    "hrm_text": "its layers are run several times in cycles, with caches of their own",
    "hunyuan_v1_moe": "its experts have a shared one that no field counts",
    "imagegpt": "it reads pixels: its head is narrower than its table, and its norms have no shift",
    "jais2": _NO_GATE,
    "jina_embeddings_v3": "its positions are rotary",
    "lara_mini": "its attention has no output gate, unlike the Qwen3-Next that its fields resemble",
    "layoutlm": _LAYOUT,
    "lilt": "a second, narrower stream reads the layout of the page",
    "longcat_flash": "each of its layers has two attentions",
    "markuplm": "it also embeds the paths of words in markup",
    "metaclip_2_text_model": _CLIP,
    "mobilebert": "its layers are narrowed by bottlenecks",
    "mra": "its attention is approximated at several resolutions",
    "musicgen_decoder": _CODEBOOKS,
    "musicgen_melody_decoder": _CODEBOOKS,
    "nanochat": _NO_GATE,
    "nemotron3_5_transcribe_word_timestamp": _SOUND,
    "nemotron": _NO_GATE,
    "ovis2_vision": _IMAGES,
    "owlv2_text_model": _CLIP,
    "owlvit_text_model": _CLIP,
    "phi4_multimodal": "its encoders of images and speech are parts of it that no text_config sets apart",
    "pix2struct_text_model": "it is a decoder alone, which reads images by cross-attention",
    "pop2piano": "it reads sound through a table of its own",
    "qwen3_omni_moe_talker_code_predictor": _CODEBOOKS,
    "qwen3_omni_moe_talker_text": "its shared expert is sized by a field that its configuration lacks",
    "rembert": _NARROW,
    "roc_bert": "it also embeds the shape and the sound of characters",
    "roformer": "its positions are rotary",
    "sam3_lite_text_text_model": "convolutions stand among its layers",
    "siglip2_text_model": _CLIP,
    "siglip_text_model": _CLIP,
    "splinter": _NO_POOLER,
    "t5_gemma_module": "it is one half of a T5Gemma",
    "t5gemma2_decoder": "its self-attention and cross-attention are one",
    "t5gemma2_text": "it is an encoder, and would be read as a decoder",
    "tipsv2_text_model": _CLIP,
    "tvp": "it also reads video",
    "udop": _LAYOUT,
    "ultrabert": "it is an encoder, and would be read as a decoder",
    "videoprism_text_model": _CLIP,
    "visual_bert": "it also embeds what it sees",
    "voxtral_encoder": _SOUND,
    "xclip_text_model": _CLIP,
    "xmod": "each of its layers has adapters, one for each language",
}

# Models that the shared readers price but for less than a thousandth: what is left out.
LEFT_OUT = {
    "bitnet": "a norm inside each attention and each MLP is left out",
    "bros": "what embeds boxes on a page is left out",
    "cohere_compass_text": "a norm too many is counted in each layer",
    "flex_olmo": "norms on queries and keys are left out",
    "flint": "sinks, and norms on queries and keys, are left out",
    "glm4v_text": "biases on queries, keys and values, and two norms a layer, are left out",
    "glm_image_text": "two norms a layer are left out, and a bias on outputs is counted that the model does not have",
    "glm_ocr_text": "two norms a layer are left out",
    "granite_swa": "sinks are left out",
    "granitemoe_swa": "sinks are left out",
    "hunyuan_v1_dense": "norms on queries and keys are left out",
    "hunyuan_vl_text": "norms on queries and keys are left out",
    "hyperclovax": "two norms a layer are left out",
    "kolibri1": "norms on queries and keys, and two norms a layer, are left out",
    "minimax_m2": "norms on queries and keys are left out",
    "openai-gpt": "a final norm is counted that the model does not have",
    "phimoe": "shifts of norms are left out",
    "qwen3_vl_moe_text": "norms on queries and keys are left out",
    "roberta-prelayernorm": "a final norm is left out",
    "umt5": "only one table of relative positions is counted, and each layer has its own",
}


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
