"""GPT-NeoX and Pythia: fused rows (head, 3, head_dim), a quarter of each head rotated, parallel residual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.families.gpt2 import GPT
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import LAYER, ROTARY_BUFFERS, linear, norm, plain_mlp, rows_by_head

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """Whether attention and MLP stand side by side is a field of this family alone."""
    draft.parallel = fields.flag("use_parallel_residual", default=True)


FAMILIES = (
    like(
        GPT,
        "gpt_neox",
        rope_share=("rotary_pct",),
        defaults={"rope_fraction": 0.25, "attention_bias": True, "norm_eps": 1e-5},
        bias="",
        bias_fields=(("attention_bias", "qkvo"),),
        positions="rope",
        layout=(
            Stored("gpt_neox.embed_in.weight", (("tokens", "l m"),)),
            *rows_by_head("gpt_neox.layers.{i}.attention.query_key_value"),
            *linear("gpt_neox.layers.{i}.attention.dense", LAYER + "self.o", "m (y v)", "m"),
            *plain_mlp(LAYER, "gpt_neox.layers.{i}.mlp.dense_h_to_4h", "gpt_neox.layers.{i}.mlp.dense_4h_to_h"),
            *norm("gpt_neox.layers.{i}.input_layernorm", LAYER + "pre_attention_norm"),
            *norm("gpt_neox.layers.{i}.post_attention_layernorm", LAYER + "pre_mlp_norm"),
            *norm("gpt_neox.final_layer_norm", "decoder.final_norm"),
            Stored("embed_out.weight", (("head", "l m"),)),
        ),
        ignored=(*ROTARY_BUFFERS, r"\.attention\.(bias|masked_bias)$"),
        prefixes=((("gpt_neox.", ""),), (("embed_out.", "lm_head."),)),
        finish=_finish,
    ),
)
