"""Phi 1 to 2: attention and a plain MLP side by side after one norm, biases everywhere, partly rotated heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import LAYER, llama_layout, norm, plain_mlp, projections

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """The head has a bias, which no field says; norms of queries and keys are as wide as hidden_size over heads."""
    draft.head_bias = True
    if draft.qk_norm is not None and draft.head_dim * draft.heads != draft.d_model:
        draft.add_unsupported("head_dim", draft.head_dim, f"Phi's norms of heads are {draft.d_model} / {draft.heads} wide")


_PARTS = ("q_proj", "k_proj", "v_proj", "dense")

FAMILIES = (
    like(
        LLAMA,
        "phi",
        rope_share=("partial_rotary_factor",),
        defaults={"rope_fraction": 0.5},
        norm="layer",
        shift=True,
        norm_places=("pre_attention",),
        parallel=True,
        gated=False,
        bias="qkvo",
        mlp_bias=True,
        qk_norm_field="head",
        layout=llama_layout(
            attention=(
                *projections(LAYER + "self", *(f"model.layers.{{i}}.self_attn.{part}" for part in _PARTS)),
                *norm("model.layers.{i}.self_attn.q_layernorm", LAYER + "self.q_norm", "q"),
                *norm("model.layers.{i}.self_attn.k_layernorm", LAYER + "self.k_norm", "q"),
            ),
            mlp=plain_mlp(LAYER, "model.layers.{i}.mlp.fc1", "model.layers.{i}.mlp.fc2"),
            norms=norm("model.layers.{i}.input_layernorm", LAYER + "pre_attention_norm"),
            final_norm=norm("model.final_layernorm", "decoder.final_norm"),
        ),
        bias_fields=(),
        finish=_finish,
    ),
)
