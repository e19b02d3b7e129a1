"""GPT-2: learned positions, biases everywhere, and matrices stored (in, out) with columns q | k | v."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.family import Family, Stored, like
from manyheads.checkpoints.layouts import HEAD, LAYER, linear, norm

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES", "GPT"]


GPT = Family(
    name="gpt",
    model_types=(),
    derived=("head_dim", "kv_heads"),
    norm="layer",
    shift=True,
    gated=False,
    bias="qkvo",
    mlp_bias=True,
    positions="learned",
    prefixes=((("transformer.", ""),),),
)
"""What GPT-2 and its relatives share: norms with a shift, an MLP without a gate, biases everywhere."""


def _finish(fields: Fields, draft: Draft) -> None:
    """A flag leaves the logits unscaled."""
    if not fields.flag("scale_attn_weights", default=True):
        draft.scale = 1.0


FAMILIES = (
    like(
        GPT,
        "gpt2",
        spellings={"context": ("n_positions", "n_ctx")},
        defaults={"tied": True, "context": 1024, "norm_eps": 1e-5},
        layout=(
            Stored("transformer.wte.weight", (("tokens", "l m"),)),
            Stored("transformer.wpe.weight", (("decoder.positions", "p m"),)),
            Stored(
                "transformer.h.{i}.attn.c_attn.weight",
                ((LAYER + "self.q", "m (h q)"), (LAYER + "self.k", "m (k q)"), (LAYER + "self.v", "m (k v)")),
                axis=1,
            ),
            Stored(
                "transformer.h.{i}.attn.c_attn.bias",
                ((LAYER + "self.q.bias", "(h q)"), (LAYER + "self.k.bias", "(k q)"), (LAYER + "self.v.bias", "(k v)")),
            ),
            *linear("transformer.h.{i}.attn.c_proj", LAYER + "self.o", "(y v) m", "m"),
            *linear("transformer.h.{i}.mlp.c_fc", LAYER + "mlp.up", "m w", "w"),
            *linear("transformer.h.{i}.mlp.c_proj", LAYER + "mlp.down", "w m", "m"),
            *norm("transformer.h.{i}.ln_1", LAYER + "pre_attention_norm"),
            *norm("transformer.h.{i}.ln_2", LAYER + "pre_mlp_norm"),
            *norm("transformer.ln_f", "decoder.final_norm"),
            *HEAD,
        ),
        ignored=(r"\.attn\.(bias|masked_bias)$",),
        refused=(("scale_attn_by_inverse_layer_idx", False, "a scale that differs by layer is not described"),),
        finish=_finish,
    ),
)
