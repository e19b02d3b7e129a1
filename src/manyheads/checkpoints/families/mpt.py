"""MPT: multi-head attention with ALiBi, no biases at all; its attention settings are an object of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.families.gpt2 import GPT
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import HEAD, LAYER, fused_projections, linear, norm, plain_mlp
from manyheads.checkpoints.unread_keys import is_inert
from manyheads.spec.positions import NoPositions

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]

# What transformers' class reads of attn_config, or ignores without harm.
_KNOWN = ("attn_impl", "attn_pdrop", "attn_type", "alibi", "alibi_bias_max", "softmax_scale", "clip_qkv",
          "attn_uses_sequence_id", "model_type", "fused_qkv", "attn_logit_softcapping")  # fmt: skip


def _finish(fields: Fields, draft: Draft) -> None:
    """attn_config holds what other families say beside the sizes."""
    config = fields.object("attn_config") or {}
    kind = config.get("attn_type", "multihead_attention")
    if kind != "multihead_attention":
        draft.add_unsupported("attn_config.attn_type", kind, "transformers' MPT has multi-head attention only")
    for key in ("qk_ln", "prefix_lm", "kv_n_heads", "rope", "sliding_window_size"):
        if not is_inert(config.get(key)) and config.get(key) != -1:
            draft.add_unsupported(f"attn_config.{key}", config[key], "transformers' MPT does not read it")
    if config.get("alibi", True) is False:
        draft.positions = {"full_attention": NoPositions()}
    scale = fields.as_number("attn_config.softmax_scale", config.get("softmax_scale"))
    draft.scale = draft.scale if scale is None else scale
    ratio = fields.optional_size("expansion_ratio", 4)
    draft.mlp_width = 4 * draft.d_model
    if ratio != 4:
        draft.notes.append(f"expansion_ratio {ratio} is not used: transformers' MPT has an MLP 4 times as wide")


FAMILIES = (
    like(
        GPT,
        "mpt",
        spellings={"context": ("max_seq_len",)},
        defaults={"tied": True, "norm_eps": 1e-5},
        shift=False,
        bias="",
        mlp_bias=False,
        positions="alibi",
        layout=(
            Stored("transformer.wte.weight", (("tokens", "l m"),)),
            fused_projections("transformer.blocks.{i}.attn.Wqkv", LAYER + "self")[0],
            *linear("transformer.blocks.{i}.attn.out_proj", LAYER + "self.o", "m (y v)", "m"),
            *plain_mlp(LAYER, "transformer.blocks.{i}.ffn.up_proj", "transformer.blocks.{i}.ffn.down_proj"),
            *norm("transformer.blocks.{i}.norm_1", LAYER + "pre_attention_norm"),
            *norm("transformer.blocks.{i}.norm_2", LAYER + "pre_mlp_norm"),
            *norm("transformer.norm_f", "decoder.final_norm"),
            *HEAD,
        ),
        passed_over=("learned_pos_emb", "no_bias", "norm_type", "embedding_fraction", "verbose"),
        finish=_finish,
    ),
)
