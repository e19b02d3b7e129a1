"""Qwen 1.5, 2 and 2.5, also inside Qwen-VL and Qwen-Omni: biases on queries, keys and values only; the upper layers may have a window."""

from __future__ import annotations

from dataclasses import replace

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import EXPERTS, LLAMA_LAYOUT, LLAMA_PREFIXES, ROTARY_BUFFERS, SHARED_EXPERT

__all__ = ["FAMILIES"]

_QWEN2 = Family(
    name="qwen2",
    model_types=("qwen2",),
    defaults={"kv_heads": 32, "use_window": False, "window": 4096, "max_window_layers": 28},
    bias="qkv",
    windows="from_layer",
    layout=LLAMA_LAYOUT,
    ignored=ROTARY_BUFFERS,
    prefixes=LLAMA_PREFIXES,
    nested_defaults={"vocab_size": 151936, "d_model": 4096, "mlp_width": 22016, "layers": 32, "heads": 32,
                     "context": 32768},  # fmt: skip
)

FAMILIES = (
    _QWEN2,
    replace(
        _QWEN2,
        name="qwen2_vl_text",
        model_types=("qwen2_vl_text", "qwen2_5_vl_text"),
        defaults={"kv_heads": 8, "use_window": False, "window": 4096, "max_window_layers": 80, "norm_eps": 1e-5,
                  "rope_theta": 1e6},  # fmt: skip
        nested_defaults={},
    ),
    replace(
        _QWEN2,
        name="qwen2_5_omni_text",
        model_types=("qwen2_5_omni_text",),
        defaults={"kv_heads": 4, "use_window": False, "window": 32768, "max_window_layers": 28, "rope_theta": 1e6},
        nested_defaults={},
    ),
    Family(
        name="qwen2_moe",
        model_types=("qwen2_moe",),
        defaults={
            "kv_heads": 16, "use_window": False, "window": 4096, "max_window_layers": 28, "qkv_bias": True,
            "experts": 60, "active": 4, "expert_width": 1408, "shared_width": 5632,
        },  # fmt: skip
        bias_fields=(("qkv_bias", "qkv"),),
        windows="odd_below",
        shared_gate=True,
        layout=(*LLAMA_LAYOUT, *EXPERTS, *SHARED_EXPERT),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
)
