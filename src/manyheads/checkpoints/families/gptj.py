"""GPT-J: one norm, attention and MLP side by side, the first `rotary_dim` elements of each head turned in pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.family import Family, Stored
from manyheads.checkpoints.layouts import HEAD, LAYER, linear, norm

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """The head has a bias, which no field says; scale_attn_weights is not read by transformers' GPT-J."""
    draft.head_bias = True
    fields.raw("scale_attn_weights")
    fields.raw("rotary")


FAMILIES = (
    Family(
        name="gptj",
        model_types=("gptj",),
        rope_share=("rotary_dim",),
        derived=("head_dim", "kv_heads"),
        spellings={"context": ("n_positions",)},
        defaults={"context": 2048, "rope_dim": 64, "norm_eps": 1e-5},
        norm="layer",
        shift=True,
        norm_places=("pre_attention",),
        parallel=True,
        gated=False,
        mlp_bias=True,
        rope_layout="interleaved",
        layout=(
            Stored("transformer.wte.weight", (("tokens", "l m"),)),
            *linear("transformer.h.{i}.attn.q_proj", LAYER + "self.q", "(h q) m", "(h q)"),
            *linear("transformer.h.{i}.attn.k_proj", LAYER + "self.k", "(k q) m", "(k q)"),
            *linear("transformer.h.{i}.attn.v_proj", LAYER + "self.v", "(k v) m", "(k v)"),
            *linear("transformer.h.{i}.attn.out_proj", LAYER + "self.o", "m (y v)", "m"),
            *linear("transformer.h.{i}.mlp.fc_in", LAYER + "mlp.up", "w m", "w"),
            *linear("transformer.h.{i}.mlp.fc_out", LAYER + "mlp.down", "m w", "m"),
            *norm("transformer.h.{i}.ln_1", LAYER + "pre_attention_norm"),
            *norm("transformer.ln_f", "decoder.final_norm"),
            *HEAD,
        ),
        ignored=(r"\.attn\.(bias|masked_bias|embed_positions)$",),
        prefixes=((("transformer.", ""),),),
        finish=_finish,
    ),
)
