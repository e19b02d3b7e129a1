"""Qwen 3, dense and mixture, also inside Qwen3-VL: a norm on each query and key head, a head size of its own, no biases."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import EXPERTS, LLAMA_LAYOUT, NORMS_PER_HEAD

__all__ = ["FAMILIES"]

_NORMED = like(LLAMA, "", qk_norm="head", layout=(*LLAMA_LAYOUT, *NORMS_PER_HEAD))

FAMILIES = (
    like(
        _NORMED,
        "qwen3",
        defaults={"kv_heads": 32, "head_dim": 128, "use_window": False, "window": 4096, "max_window_layers": 28},
        windows="from_layer",
    ),
    like(_NORMED, "qwen3_vl_text", defaults={"kv_heads": 32, "head_dim": 128, "rope_theta": 5e5}),
    like(
        _NORMED,
        "qwen3_moe",
        defaults={"kv_heads": 4, "use_window": False, "window": 4096, "experts": 128, "active": 8, "expert_width": 768},
        windows="all",
        layout=(*_NORMED.layout, *EXPERTS),
    ),
)
