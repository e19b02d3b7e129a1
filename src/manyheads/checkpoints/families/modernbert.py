"""ModernBERT: an encoder whose layers see everything in turn with a band around each token, with rotation and a gate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from manyheads.checkpoints.draft import FULL, SLIDING
from manyheads.checkpoints.family import Family, Stored
from manyheads.checkpoints.layouts import ROTARY_BUFFERS, fused_projections, linear, norm

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]

_LAYER = "encoder.layers.{i}."
_STORED = "model.layers.{i}."


def _finish(fields: Fields, draft: Draft) -> None:
    """`local_attention` counts both sides; norms have a shift by a flag; the first attention reads what a norm just gave."""
    both = fields.size("window", 128, least=2)
    draft.window = both // 2
    every = fields.size("global_attn_every_n_layers", 3)
    if not fields.has("layer_types"):
        draft.kinds = [SLIDING if index % every else FULL for index in range(draft.layers)]
    if draft.norm is not None and fields.flag("norm_bias"):
        draft.norm = draft.final_norm = draft.embedding_norm = replace(draft.norm, shift=True)
    draft.first_places = ("pre_mlp",)


FAMILIES = (
    Family(
        name="modernbert",
        model_types=("modernbert",),
        derived=("head_dim", "kv_heads"),
        stack="rotary_encoder",
        spellings={"window": ("local_attention",), "rope_theta": ("global_rope_theta",)},
        defaults={"window": 128, "rope_theta": 160000.0, "local_rope_theta": 10000.0, "tied": True},
        norm="layer",
        embedding_norm=True,
        bias_fields=(("attention_bias", "qkvo"),),
        windows="pattern",
        layout=(
            Stored("model.embeddings.tok_embeddings.weight", (("tokens", "l m"),)),
            *norm("model.embeddings.norm", "encoder.embedding_norm"),
            *fused_projections(_STORED + "attn.Wqkv", _LAYER + "self"),
            *linear(_STORED + "attn.Wo", _LAYER + "self.o", "m (y v)", "m"),
            # The half that the activation bends, then the half that multiplies it.
            Stored(_STORED + "mlp.Wi.weight", ((_LAYER + "mlp.gate", "w m"), (_LAYER + "mlp.up", "w m"))),
            Stored(_STORED + "mlp.Wi.bias", ((_LAYER + "mlp.gate.bias", "w"), (_LAYER + "mlp.up.bias", "w"))),
            *linear(_STORED + "mlp.Wo", _LAYER + "mlp.down", "m w", "m"),
            *norm(_STORED + "attn_norm", _LAYER + "pre_attention_norm"),
            *norm(_STORED + "mlp_norm", _LAYER + "pre_mlp_norm"),
            *norm("model.final_norm", "encoder.final_norm"),
        ),
        ignored=ROTARY_BUFFERS,
        prefixes=((("model.", ""),),),
        task_heads=(r"^head\.", r"^decoder\.", r"^classifier\."),
        copies=((r"^decoder\.weight$", "tokens"),),
        # Of the task's head, or unread.
        passed_over=("sparse_prediction", "sparse_pred_ignore_index", "position_embedding_type"),
        finish=_finish,
    ),
)
