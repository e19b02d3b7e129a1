"""Phi 1 to 2: attention and a plain MLP side by side after one norm, biases everywhere, partly rotated heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import EMBED, HEAD, LAYER, LLAMA_PREFIXES, ROTARY_BUFFERS, linear, norm

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """The head has a bias, which no field says; norms of queries and keys are as wide as hidden_size over heads."""
    draft.head_bias = True
    if draft.qk_norm is not None and draft.head_dim * draft.heads != draft.d_model:
        draft.doubt("head_dim", draft.head_dim, f"Phi's norms of heads are {draft.d_model} / {draft.heads} wide")


FAMILIES = (
    Family(
        name="phi",
        model_types=("phi",),
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
        layout=(
            *EMBED,
            *linear("model.layers.{i}.self_attn.q_proj", LAYER + "self.q", "(h q) m", "(h q)"),
            *linear("model.layers.{i}.self_attn.k_proj", LAYER + "self.k", "(k q) m", "(k q)"),
            *linear("model.layers.{i}.self_attn.v_proj", LAYER + "self.v", "(k v) m", "(k v)"),
            *linear("model.layers.{i}.self_attn.dense", LAYER + "self.o", "m (y v)", "m"),
            *norm("model.layers.{i}.self_attn.q_layernorm", LAYER + "self.q_norm", "q"),
            *norm("model.layers.{i}.self_attn.k_layernorm", LAYER + "self.k_norm", "q"),
            *linear("model.layers.{i}.mlp.fc1", LAYER + "mlp.up", "w m", "w"),
            *linear("model.layers.{i}.mlp.fc2", LAYER + "mlp.down", "m w", "m"),
            *norm("model.layers.{i}.input_layernorm", LAYER + "pre_attention_norm"),
            *norm("model.final_layernorm", "decoder.final_norm"),
            *HEAD,
        ),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
        finish=_finish,
    ),
)
