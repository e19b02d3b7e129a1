"""BERT, RoBERTa and DistilBERT: encoders with learned positions, biases everywhere, norms after the residual sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.family import Family, Stored, like
from manyheads.checkpoints.layouts import norm, plain_mlp, projections, tied_decoder
from manyheads.spec.stack import OtherWeight

if TYPE_CHECKING:
    from manyheads.checkpoints.encoders import EncoderDraft
    from manyheads.checkpoints.fields import Fields

__all__ = ["BERT", "FAMILIES"]

_LAYER = "encoder.layers.{i}."
_SIZES = {"encoder_width": ("intermediate_size",), "encoder_layers": ("num_hidden_layers",),
          "encoder_heads": ("num_attention_heads",)}  # fmt: skip


def _bert_layout(root: str) -> tuple[Stored, ...]:
    layer = root + "encoder.layer.{i}."
    return (
        Stored(root + "embeddings.word_embeddings.weight", (("tokens", "l m"),)),
        Stored(root + "embeddings.position_embeddings.weight", (("encoder.positions", "p m"),)),
        Stored(root + "embeddings.token_type_embeddings.weight", (("token_types", "o m"),)),
        *norm(root + "embeddings.LayerNorm", "encoder.embedding_norm"),
        *projections(
            _LAYER + "self", *(f"{layer}attention.{part}" for part in ("self.query", "self.key", "self.value", "output.dense"))
        ),
        *norm(layer + "attention.output.LayerNorm", _LAYER + "post_attention_norm"),
        *plain_mlp(_LAYER, layer + "intermediate.dense", layer + "output.dense"),
        *norm(layer + "output.LayerNorm", _LAYER + "post_mlp_norm"),
        Stored(root + "pooler.dense.weight", (("pooler.weight", "..."),)),
        Stored(root + "pooler.dense.bias", (("pooler.bias", "..."),)),
    )


def _finish_bert(fields: Fields, draft: EncoderDraft) -> None:
    """Segments and the pooler stand beside the stack."""
    draft.token_types = fields.size("type_vocab_size", 2)
    draft.other = (OtherWeight("pooler.weight", (draft.d_model, draft.d_model)), OtherWeight("pooler.bias", (draft.d_model,)))


_DISTIL = "distilbert.transformer.layer.{i}."
_GAMMA = (((".LayerNorm.weight", ".LayerNorm.gamma"), (".LayerNorm.bias", ".LayerNorm.beta")),)

BERT = Family(
    name="bert",
    model_types=("bert",),
    derived=("head_dim",),
    stack="encoder",
    spellings=_SIZES,
    defaults={"context": 512, "norm_eps": 1e-12, "tied": True},
    norm="layer",
    shift=True,
    norm_places=("post_attention", "post_mlp"),
    final_norm=False,
    embedding_norm=True,
    gated=False,
    bias="qkvo",
    mlp_bias=True,
    positions="learned",
    layout=_bert_layout("bert."),
    ignored=(r"embeddings\.position_ids$", r"embeddings\.token_type_ids$"),
    prefixes=((("bert.", ""),),),
    endings=_GAMMA,
    optional=("pooler.",),
    task_heads=(r"^cls\.", r"^classifier\.", r"^qa_outputs\."),
    copies=tied_decoder("cls.predictions"),
    refused=(
        ("position_embedding_type", "absolute", "positions other than absolute ones act inside attention"),
        ("is_decoder", False, "only the encoder is described"),
        ("add_cross_attention", False, "only the encoder is described"),
    ),
    finish_encoder=_finish_bert,
)

FAMILIES = (
    BERT,
    like(
        BERT,
        "roberta",
        "roberta",
        "xlm-roberta",
        "camembert",
        layout=_bert_layout("roberta."),
        prefixes=((("roberta.", ""),),),
        endings=(),
        task_heads=(r"^lm_head\.", r"^classifier\.", r"^qa_outputs\."),
        copies=tied_decoder("lm_head"),
    ),
    like(
        BERT,
        "distilbert",
        spellings={
            "encoder_width": ("hidden_dim",), "encoder_layers": ("n_layers",), "encoder_heads": ("n_heads",),
            "d_model": ("dim",),
        },  # fmt: skip
        layout=(
            Stored("distilbert.embeddings.word_embeddings.weight", (("tokens", "l m"),)),
            Stored("distilbert.embeddings.position_embeddings.weight", (("encoder.positions", "p m"),)),
            *norm("distilbert.embeddings.LayerNorm", "encoder.embedding_norm"),
            *projections(_LAYER + "self", *(f"{_DISTIL}attention.{part}_lin" for part in ("q", "k", "v", "out"))),
            *norm(_DISTIL + "sa_layer_norm", _LAYER + "post_attention_norm"),
            *plain_mlp(_LAYER, _DISTIL + "ffn.lin1", _DISTIL + "ffn.lin2"),
            *norm(_DISTIL + "output_layer_norm", _LAYER + "post_mlp_norm"),
        ),
        ignored=(r"embeddings\.position_ids$",),
        prefixes=((("distilbert.", ""),),),
        endings=(),
        optional=(),
        task_heads=(r"^vocab_", r"^pre_classifier\.", r"^classifier\.", r"^qa_outputs\."),
        copies=((r"^vocab_projector\.weight$", "tokens"),),
        refused=(),
        passed_over=("sinusoidal_pos_embds",),  # stored like learned ones
        finish_encoder=None,
    ),
)
