"""Whisper: two convolutions, an encoder over 1,500 frames with stored sinusoids, a decoder; keys have no bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.family import Family, Stored
from manyheads.checkpoints.layouts import norm, seq2seq_stack
from manyheads.spec.stack import OtherWeight

if TYPE_CHECKING:
    from manyheads.checkpoints.encoders import EncoderDraft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: EncoderDraft) -> None:
    """Each side has its own number of positions, and convolutions stand before the encoder."""
    encoder, width = draft.halves[0], draft.d_model
    encoder.position_rows = fields.size("max_source_positions", 1500)
    encoder.other = (
        OtherWeight("conv1.weight", (width, fields.size("num_mel_bins", 80), 3)),
        OtherWeight("conv1.bias", (width,)),
        OtherWeight("conv2.weight", (width, width, 3)),
        OtherWeight("conv2.bias", (width,)),
    )


FAMILIES = (
    Family(
        name="whisper",
        model_types=("whisper",),
        derived=("head_dim",),
        stack="seq2seq",
        spellings={"context": ("max_target_positions",)},
        defaults={"tied": True, "context": 448},
        norm="layer",
        shift=True,
        gated=False,
        bias="qvo",
        mlp_bias=True,
        positions="learned",
        layout=(
            Stored("model.decoder.embed_tokens.weight", (("tokens", "l m"),)),
            *(
                Stored(f"model.encoder.{name}", ((f"encoder.{name}", "..."),))
                for name in ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")
            ),
            Stored("model.encoder.embed_positions.weight", (("encoder.positions", "p m"),)),
            Stored("model.decoder.embed_positions.weight", (("decoder.positions", "p m"),)),
            *seq2seq_stack("encoder", places="pre"),
            *seq2seq_stack("decoder", places="pre"),
            *norm("model.encoder.layer_norm", "encoder.final_norm"),
            *norm("model.decoder.layer_norm", "decoder.final_norm"),
            Stored("proj_out.weight", (("head", "l m"),)),
        ),
        prefixes=((("model.", ""),),),
        passed_over=("num_hidden_layers", "alignment_heads"),
        finish_encoder=_finish,
    ),
)
