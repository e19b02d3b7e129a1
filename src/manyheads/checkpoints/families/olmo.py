"""OLMo 1 to 3 and OLMoE: a norm without gain in the first, norms on the outputs and on whole projections later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.draft import SLIDING
from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import (
    EMBED,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    HEAD,
    LAYER,
    LLAMA_ATTENTION,
    LLAMA_LAYOUT,
    LLAMA_NORMS,
    LLAMA_PREFIXES,
    ROTARY_BUFFERS,
    norm,
)
from manyheads.spec.positions import Rope

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]

_FULL_NORMS = (
    *norm("model.layers.{i}.self_attn.q_norm", LAYER + "self.q_norm", "(h q)"),
    *norm("model.layers.{i}.self_attn.k_norm", LAYER + "self.k_norm", "(k q)"),
)
_OUTPUT_NORMS = (
    *norm("model.layers.{i}.post_attention_layernorm", LAYER + "out_attention_norm"),
    *norm("model.layers.{i}.post_feedforward_layernorm", LAYER + "out_mlp_norm"),
)
_LATER = (*EMBED, *LLAMA_ATTENTION, *_FULL_NORMS, *GATED_MLP, *_OUTPUT_NORMS, *FINAL_NORM, *HEAD)


def _clipped(fields: Fields, draft: Draft) -> None:
    """clip_qkv bounds queries, keys and values: it changes no shape and no cost, so it is only told."""
    bound = fields.number("clip_qkv")
    if bound is not None:
        draft.notes.append(f"queries, keys and values are clipped at {bound:g}")


def _unscaled_windows(fields: Fields, draft: Draft) -> None:
    """A rope_scaling of the old spelling acts on the full layers only, as in transformers' OLMo 3."""
    sliding = draft.positions.get(SLIDING)
    if isinstance(sliding, Rope) and not fields.has("rope_parameters"):
        draft.positions[SLIDING] = Rope(sliding.dim, sliding.base, sliding.layout)


FAMILIES = (
    Family(
        name="olmo",
        model_types=("olmo",),
        norm="layer",
        gain="none",
        bias_fields=(("attention_bias", "qkvo"),),
        layout=LLAMA_LAYOUT,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
        finish=_clipped,
    ),
    Family(
        name="olmo2",
        model_types=("olmo2",),
        defaults={"norm_eps": 1e-5},
        norm_places=("out_attention", "out_mlp"),
        bias_fields=(("attention_bias", "qkvo"),),
        qk_norm="full",
        layout=_LATER,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
    Family(
        name="olmo3",
        model_types=("olmo3",),
        defaults={"norm_eps": 1e-5, "window": 4096, "rope_theta": 5e5},
        norm_places=("out_attention", "out_mlp"),
        bias_fields=(("attention_bias", "qkvo"),),
        qk_norm="full",
        windows="pattern",
        window_period=4,
        layout=_LATER,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
        finish=_unscaled_windows,
    ),
    Family(
        name="olmoe",
        model_types=("olmoe",),
        derived=("head_dim",),  # its projections would take one, its norms of queries and keys do not
        defaults={"norm_eps": 1e-5, "experts": 64, "active": 8},
        bias_fields=(("attention_bias", "qkvo"),),
        qk_norm="full",
        layout=(*EMBED, *LLAMA_ATTENTION, *_FULL_NORMS, *EXPERTS, *LLAMA_NORMS, *FINAL_NORM, *HEAD),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
        finish=_clipped,
    ),
)
