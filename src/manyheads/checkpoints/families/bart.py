"""BART and Marian: encoder-decoders with biases everywhere and norms after the residual sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.family import Family, Stored
from manyheads.checkpoints.layouts import HEAD, norm, seq2seq_stack
from manyheads.spec.stack import OtherWeight

if TYPE_CHECKING:
    from manyheads.checkpoints.encoders import EncoderDraft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish_bart(fields: Fields, draft: EncoderDraft) -> None:
    """A bias on the logits is stored as a buffer; settings of fairseq's that transformers does not read are only read."""
    draft.other = (OtherWeight("final_logits_bias", (1, draft.vocab_size), buffer=True),)
    for key in ("num_hidden_layers", "normalize_before", "normalize_embedding", "add_final_layer_norm",
                "add_bias_logits", "static_position_embeddings", "is_decoder"):  # fmt: skip
        if fields.raw(key) is True and key in ("normalize_before", "add_final_layer_norm"):
            draft.notes.append(f"{key} is not used: the norms of transformers' class stand after the sums")


def _finish_marian(fields: Fields, draft: EncoderDraft) -> None:
    """Positions are computed, not stored; two vocabularies would need a second table."""
    _finish_bart(fields, draft)
    for half in draft.halves:
        half.position_rows = 0
    target = fields.optional_size("decoder_vocab_size")
    if target is not None and target != draft.vocab_size:
        fields.fail(
            f"decoder_vocab_size {target} differs from vocab_size {draft.vocab_size}: two vocabularies are not described"
        )
    if not fields.flag("share_encoder_decoder_embeddings", default=True):
        fields.fail("share_encoder_decoder_embeddings is false: two token tables are not described; expected true")


_LAYOUT = (
    Stored("model.shared.weight", (("tokens", "l m"),)),
    *seq2seq_stack("encoder", places="post"),
    *seq2seq_stack("decoder", places="post"),
    Stored("final_logits_bias", (("final_logits_bias", "..."),)),
    *HEAD,
)
_COPIES = r"^(model\.)?(encoder|decoder)\.embed_tokens\.weight$"

FAMILIES = (
    Family(
        name="bart",
        model_types=("bart",),
        stack="seq2seq",
        defaults={"tied": True, "context": 1024},
        norm="layer",
        shift=True,
        norm_places=("post_attention", "post_mlp"),
        final_norm=False,
        embedding_norm=True,
        gated=False,
        bias="qkvo",
        mlp_bias=True,
        positions="learned",
        position_extra=2,
        layout=(
            *_LAYOUT,
            Stored("model.encoder.embed_positions.weight", (("encoder.positions", "p m"),)),
            Stored("model.decoder.embed_positions.weight", (("decoder.positions", "p m"),)),
            *norm("model.encoder.layernorm_embedding", "encoder.embedding_norm"),
            *norm("model.decoder.layernorm_embedding", "decoder.embedding_norm"),
        ),
        ignored=(_COPIES,),
        prefixes=((("model.", ""),),),
        optional=("final_logits_bias",),
        task_heads=(r"^classification_head\.", r"^qa_outputs\."),
        finish_encoder=_finish_bart,
    ),
    Family(
        name="marian",
        model_types=("marian",),
        stack="seq2seq",
        defaults={"tied": True, "context": 1024},
        norm="layer",
        shift=True,
        norm_places=("post_attention", "post_mlp"),
        final_norm=False,
        gated=False,
        bias="qkvo",
        mlp_bias=True,
        positions="sinusoidal",
        layout=_LAYOUT,
        ignored=(_COPIES, r"(encoder|decoder)\.embed_positions\.weight$"),
        prefixes=((("model.", ""),),),
        optional=("final_logits_bias",),
        finish_encoder=_finish_marian,
    ),
)
