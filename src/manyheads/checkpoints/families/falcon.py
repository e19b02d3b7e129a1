"""Falcon, both decoders: one key/value head (7B), groups (40B, 180B, Falcon 2), or one a query head (RW)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.families.gpt2 import GPT
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import HEAD, LAYER, ROTARY_BUFFERS, linear, norm, plain_mlp
from manyheads.spec.attention import Bias
from manyheads.spec.positions import Alibi

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """Three flags decide together how many key/value heads and norms there are."""
    grouped, multi_query = fields.flag("new_decoder_architecture"), fields.flag("multi_query", default=True)
    draft.parallel = fields.flag("parallel_attn", default=True)
    if not grouped:  # the class does not ask how many there are
        draft.kv_heads = 1 if multi_query else draft.heads
    norms = fields.optional_size("num_ln_in_parallel_attn")
    norms = (2 if grouped else 1) if norms is None else norms
    draft.norm_places = ("pre_attention", "pre_mlp") if norms == 2 or not draft.parallel else ("pre_attention",)
    if fields.flag("bias"):
        draft.bias, draft.mlp_bias = Bias.of("qkvo"), True
    if fields.flag("alibi"):
        draft.positions = {"full_attention": Alibi()}


# Rows by key/value head: the queries that share it, then its key, then its value.
_QKV = (
    Stored(
        "transformer.h.{i}.self_attention.query_key_value.weight",
        ((LAYER + "self.q", "(k g) q m -> k (g q) m"), (LAYER + "self.k", "k q m"), (LAYER + "self.v", "k v m")),
        axis=1,
        merge=0,
    ),
    Stored(
        "transformer.h.{i}.self_attention.query_key_value.bias",
        (
            (LAYER + "self.q.bias", "(k g) q -> k (g q)"),
            (LAYER + "self.k.bias", "k q"),
            (LAYER + "self.v.bias", "k v"),
        ),
        axis=1,
        merge=0,
    ),
)
_TWO_NORMS = f"parallel {LAYER}pre_mlp_norm.weight"

FAMILIES = (
    like(
        GPT,
        "falcon",
        "falcon",
        "RefinedWeb",
        "RefinedWebModel",
        derived=("head_dim",),
        spellings={
            "mlp_width": ("ffn_hidden_size",), "context": ("max_position_embeddings",), "kv_heads": ("num_kv_heads", "n_head_kv"),
        },  # fmt: skip
        defaults={"tied": True, "context": 2048, "norm_eps": 1e-5},
        bias="",
        mlp_bias=False,
        positions="rope",
        layout=(
            Stored("transformer.word_embeddings.weight", (("tokens", "l m"),)),
            *_QKV,
            *linear("transformer.h.{i}.self_attention.dense", LAYER + "self.o", "m (y v)", "m"),
            *plain_mlp(LAYER, "transformer.h.{i}.mlp.dense_h_to_4h", "transformer.h.{i}.mlp.dense_4h_to_h"),
            *norm("transformer.h.{i}.ln_attn", LAYER + "pre_attention_norm", when=_TWO_NORMS),
            *norm("transformer.h.{i}.ln_mlp", LAYER + "pre_mlp_norm", when=_TWO_NORMS),
            *norm("transformer.h.{i}.input_layernorm", LAYER + "pre_attention_norm"),
            *norm("transformer.h.{i}.post_attention_layernorm", LAYER + "pre_mlp_norm"),
            *norm("transformer.ln_f", "decoder.final_norm"),
            *HEAD,
        ),
        ignored=ROTARY_BUFFERS,
        finish=_finish,
    ),
)
