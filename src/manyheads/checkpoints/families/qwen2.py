"""Qwen 1.5, 2 and 2.5, also inside Qwen-VL and Qwen-Omni: biases on queries, keys and values only; the upper layers may have a window."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import EXPERTS, LLAMA_LAYOUT, SHARED_EXPERT

__all__ = ["FAMILIES"]

_QWEN2 = like(
    LLAMA,
    "qwen2",
    defaults={"kv_heads": 32, "use_window": False, "window": 4096, "max_window_layers": 28},
    bias="qkv",
    bias_fields=(),
    windows="from_layer",
    nested_defaults={**LLAMA.nested_defaults, "vocab_size": 151936, "mlp_width": 22016, "context": 32768},
)

FAMILIES = (
    _QWEN2,
    like(
        _QWEN2,
        "qwen2_vl_text",
        "qwen2_vl_text",
        "qwen2_5_vl_text",
        defaults={"kv_heads": 8, "use_window": False, "window": 4096, "max_window_layers": 80, "norm_eps": 1e-5,
                  "rope_theta": 1e6},  # fmt: skip
    ),
    like(
        _QWEN2,
        "qwen2_5_omni_text",
        defaults={"kv_heads": 4, "use_window": False, "window": 32768, "max_window_layers": 28, "rope_theta": 1e6},
    ),
    like(
        LLAMA,
        "qwen2_moe",
        defaults={
            "kv_heads": 16, "use_window": False, "window": 4096, "max_window_layers": 28, "qkv_bias": True,
            "experts": 60, "active": 4, "expert_width": 1408, "shared_width": 5632,
        },  # fmt: skip
        bias_fields=(("qkv_bias", "qkv"),),
        windows="odd_below",
        shared_gate=True,
        layout=(*LLAMA_LAYOUT, *EXPERTS, *SHARED_EXPERT),
    ),
)
