"""OPT: learned positions with two rows to spare, biases everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.families.gpt2 import GPT
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import HEAD, LAYER, norm, plain_mlp, projections
from manyheads.spec.attention import Bias
from manyheads.spec.norms import Norm

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """Flags for biases, the place of the norms and the width of the embeddings: only OPT has them."""
    if not fields.flag("enable_bias", default=True):
        draft.bias, draft.mlp_bias = Bias(), False
    gain = "w" if fields.flag("layer_norm_elementwise_affine", default=True) else "none"
    draft.norm = Norm("layer", 1e-5, gain, shift=gain == "w")
    before = fields.flag("do_layer_norm_before", default=True)
    draft.final_norm = draft.norm if before and not fields.flag("_remove_final_layer_norm") else None
    if not before:
        draft.norm_places = ("post_attention", "post_mlp")
    width = fields.optional_size("word_embed_proj_dim")
    if width is not None and width != draft.d_model:
        fields.fail(
            f"word_embed_proj_dim {width} differs from hidden_size {draft.d_model}: embeddings that are projected "
            "(OPT-350m) are not described; expected both equal"
        )


FAMILIES = (
    like(
        GPT,
        "opt",
        spellings={"mlp_width": ("ffn_dim",)},
        defaults={"tied": True},
        position_extra=2,
        layout=(
            Stored("model.decoder.embed_tokens.weight", (("tokens", "l m"),)),
            Stored("model.decoder.embed_positions.weight", (("decoder.positions", "p m"),)),
            *projections(
                LAYER + "self", *(f"model.decoder.layers.{{i}}.self_attn.{part}_proj" for part in ("q", "k", "v", "out"))
            ),
            *plain_mlp(LAYER, "model.decoder.layers.{i}.fc1", "model.decoder.layers.{i}.fc2"),
            *norm("model.decoder.layers.{i}.self_attn_layer_norm", LAYER + "pre_attention_norm"),
            *norm("model.decoder.layers.{i}.final_layer_norm", LAYER + "pre_mlp_norm"),
            *norm("model.decoder.layers.{i}.self_attn_layer_norm", LAYER + "post_attention_norm"),
            *norm("model.decoder.layers.{i}.final_layer_norm", LAYER + "post_mlp_norm"),
            *norm("model.decoder.final_layer_norm", "decoder.final_norm"),
            *HEAD,
        ),
        prefixes=((("model.", ""),),),
        finish=_finish,
    ),
)
