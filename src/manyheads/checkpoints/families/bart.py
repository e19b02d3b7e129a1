"""BART and its relatives: encoder-decoders with biases everywhere, and norms after the residual sums or before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.families.bert import BERT
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import HEAD, norm, seq2seq_stack
from manyheads.spec.stack import OtherWeight

if TYPE_CHECKING:
    from manyheads.checkpoints.encoders import EncoderDraft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _one_table(fields: Fields, draft: EncoderDraft) -> None:
    """Untied, transformers gives encoder, decoder and head a table each, and these files were never published."""
    if draft.head == "untied" and fields.has("tied"):
        fields.fail("tie_word_embeddings is false: separate token tables of encoder and decoder are not described; expected true")


def _finish_before(fields: Fields, draft: EncoderDraft) -> None:
    """A bias on the logits is stored as a buffer."""
    _one_table(fields, draft)
    draft.other = (OtherWeight("final_logits_bias", (1, draft.vocab_size), buffer=True),)


def _finish_bart(fields: Fields, draft: EncoderDraft) -> None:
    """The same, where flags of fairseq's would ask for norms that the class does not have."""
    _finish_before(fields, draft)
    for key in ("normalize_before", "add_final_layer_norm"):
        if fields.raw(key) is True:
            draft.notes.append(f"{key} is not used: the norms of transformers' class stand after the sums")


def _finish_m2m(fields: Fields, draft: EncoderDraft) -> None:
    """No bias on the logits; positions are computed, not stored."""
    _finish_before(fields, draft)
    draft.other = ()
    for half in draft.halves:
        half.position_rows = 0


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
_BEFORE = (
    Stored("model.shared.weight", (("tokens", "l m"),)),
    *seq2seq_stack("encoder", places="pre"),
    *seq2seq_stack("decoder", places="pre"),
    *norm("model.encoder.layer_norm", "encoder.final_norm"),
    *norm("model.decoder.layer_norm", "decoder.final_norm"),
    Stored("final_logits_bias", (("final_logits_bias", "..."),)),
    *HEAD,
)
_POSITIONS = (
    Stored("model.encoder.embed_positions.weight", (("encoder.positions", "p m"),)),
    Stored("model.decoder.embed_positions.weight", (("decoder.positions", "p m"),)),
)
_EMBEDDING_NORMS = (
    *norm("model.encoder.layernorm_embedding", "encoder.embedding_norm"),
    *norm("model.decoder.layernorm_embedding", "decoder.embedding_norm"),
)
# Settings of fairseq's that transformers does not read.
_UNREAD = ("num_hidden_layers", "normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits",
           "static_position_embeddings", "is_decoder")  # fmt: skip
_COPIES = ((r"^(model\.)?(encoder|decoder)\.embed_tokens\.weight$", "tokens"),)

_BART = like(
    BERT,
    "bart",
    "bart",
    "plbart",
    stack="seq2seq",
    spellings={},
    defaults={"tied": True, "context": 1024},
    position_extra=2,
    ignored=(),
    endings=(),
    refused=(),
    layout=(*_LAYOUT, *_POSITIONS, *_EMBEDDING_NORMS),
    copies=_COPIES,
    prefixes=((("model.", ""),),),
    optional=("final_logits_bias",),
    task_heads=(r"^classification_head\.", r"^qa_outputs\."),
    passed_over=_UNREAD,
    finish_encoder=_finish_bart,
)
_MBART = like(
    _BART,
    "mbart",
    norm_places=("pre_attention", "pre_mlp"),
    final_norm=True,
    layout=(*_BEFORE, *_POSITIONS, *_EMBEDDING_NORMS),
    finish_encoder=_finish_before,
)
# Blenderbot's positions are learned, those of the three below stored or computed; none has a norm of its embeddings.
_BLENDERBOT = like(
    _MBART,
    "blenderbot",
    defaults={"tied": True, "context": 128},
    embedding_norm=False,
    position_extra=0,
    layout=(*_BEFORE, *_POSITIONS),
    task_heads=(),
)

FAMILIES = (
    _BART,
    like(
        _BART,
        "mvp",
        refused=(("use_prompt", False, "learned keys and values before each layer's own are not described"),),
    ),
    like(
        _BART,
        "blenderbot-small",
        defaults={"tied": True, "context": 512},
        position_extra=0,
        task_heads=(),
    ),
    _BLENDERBOT,
    _MBART,
    like(
        _BLENDERBOT,
        "pegasus",
        defaults=_BART.defaults,
        positions="sinusoidal",
    ),
    like(
        _BLENDERBOT,
        "m2m_100",
        defaults=_BART.defaults,
        positions="sinusoidal",
        layout=_BEFORE,
        ignored=(r"(encoder|decoder)\.embed_positions\.weights?$",),
        optional=(),
        finish_encoder=_finish_m2m,
    ),
    like(
        _BART,
        "marian",
        embedding_norm=False,
        positions="sinusoidal",
        position_extra=0,
        layout=_LAYOUT,
        ignored=(r"(encoder|decoder)\.embed_positions\.weight$",),
        task_heads=(),
        finish_encoder=_finish_marian,
    ),
)
