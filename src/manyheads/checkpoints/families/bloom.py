"""BLOOM: multi-head attention with ALiBi, a norm after the embeddings, fused rows by head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.families.gpt2 import GPT
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import HEAD, LAYER, linear, norm, plain_mlp, rows_by_head

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """The residual may leave from after the norms: nothing to price, but not what the block says."""
    if fields.flag("apply_residual_connection_post_layernorm"):
        draft.notes.append("the residual is taken after the norms (apply_residual_connection_post_layernorm)")


FAMILIES = (
    like(
        GPT,
        "bloom",
        defaults={"tied": True, "norm_eps": 1e-5},
        embedding_norm=True,
        positions="alibi",
        layout=(
            Stored("transformer.word_embeddings.weight", (("tokens", "l m"),)),
            *norm("transformer.word_embeddings_layernorm", "decoder.embedding_norm"),
            *rows_by_head("transformer.h.{i}.self_attention.query_key_value"),
            *linear("transformer.h.{i}.self_attention.dense", LAYER + "self.o", "m (y v)", "m"),
            *plain_mlp(LAYER, "transformer.h.{i}.mlp.dense_h_to_4h", "transformer.h.{i}.mlp.dense_4h_to_h"),
            *norm("transformer.h.{i}.input_layernorm", LAYER + "pre_attention_norm"),
            *norm("transformer.h.{i}.post_attention_layernorm", LAYER + "pre_mlp_norm"),
            *norm("transformer.ln_f", "decoder.final_norm"),
            *HEAD,
        ),
        finish=_finish,
    ),
)
