"""NomicBERT: a BERT with rotation instead of learned positions, a gated MLP and no biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.family import Family, Stored
from manyheads.checkpoints.layouts import ROTARY_BUFFERS, fused_projections, norm, tied_decoder

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]

_LAYER = "encoder.layers.{i}."
_STORED = "nomic_bert.encoder.layers.{i}."


def _finish(fields: Fields, draft: Draft) -> None:
    """Segments stand beside the stack."""
    draft.token_types = fields.size("type_vocab_size", 2)
    if draft.moe is not None:
        draft.add_unsupported("num_experts", draft.moe.experts, "transformers' NomicBERT has no mixtures")


# Settings of the original code that ask for another kind of block.
_OTHER_BLOCKS = ("prenorm", "parallel_block", "causal", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "use_rms_norm",
                 "rotary_emb_interleaved", "moe_every_n_layers")  # fmt: skip

FAMILIES = (
    Family(
        name="nomic_bert",
        model_types=("nomic_bert",),
        derived=("kv_heads",),
        stack="rotary_encoder",
        defaults={"context": 2048, "norm_eps": 1e-12, "rope_theta": 1000.0, "tied": True},
        norm="layer",
        shift=True,
        norm_places=("post_attention", "post_mlp"),
        final_norm=False,
        embedding_norm=True,
        layout=(
            Stored("nomic_bert.embeddings.word_embeddings.weight", (("tokens", "l m"),)),
            Stored("nomic_bert.embeddings.token_type_embeddings.weight", (("token_types", "o m"),)),
            *norm("nomic_bert.emb_ln", "encoder.embedding_norm"),
            # transformers takes these apart when it loads them.
            fused_projections(_STORED + "attn.Wqkv", _LAYER + "self")[0],
            Stored(_STORED + "attn.out_proj.weight", ((_LAYER + "self.o", "m (y v)"),)),
            Stored(_STORED + "mlp.fc11.weight", ((_LAYER + "mlp.up", "w m"),)),
            Stored(_STORED + "mlp.fc12.weight", ((_LAYER + "mlp.gate", "w m"),)),
            Stored(_STORED + "mlp.fc2.weight", ((_LAYER + "mlp.down", "m w"),)),
            *norm(_STORED + "norm1", _LAYER + "post_attention_norm"),
            *norm(_STORED + "norm2", _LAYER + "post_mlp_norm"),
        ),
        ignored=ROTARY_BUFFERS,
        prefixes=((("nomic_bert.", ""),),),
        task_heads=(r"^cls\.", r"^classifier\.", r"^(nomic_bert\.)?pooler\."),
        copies=tied_decoder("cls.predictions"),
        refused=(
            *((key, None, "transformers' NomicBERT has no such block") for key in _OTHER_BLOCKS),
            ("rotary_emb_fraction", 1.0, "transformers' NomicBERT turns whole heads"),
        ),
        finish=_finish,
    ),
)
