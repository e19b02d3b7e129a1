"""Reading encoders and encoder-decoders: the shared reader of BERT, T5, Marian, BART, Whisper and their kin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from manyheads.checkpoints.draft import UnsupportedSetting
from manyheads.checkpoints.family import Family
from manyheads.checkpoints.fields import Fields
from manyheads.checkpoints.refusals import refused_settings
from manyheads.spec.attention import AttentionSpec, Cross
from manyheads.spec.masks import Bidirectional, Causal
from manyheads.spec.norms import Norm
from manyheads.spec.positions import NoPositions, Positions, RelativeBuckets
from manyheads.spec.stack import MOST_LAYERS, Block, HeadKind, Mlp, OtherWeight, Role, Stack, StackSpec

__all__ = ["EncoderDraft", "Half", "read_encoder"]


@dataclass(eq=False)
class Half:
    """An encoder or a decoder before it is built."""

    role: Role
    layers: int
    heads: int
    mlp_width: int
    position_rows: int = 0
    other: tuple[OtherWeight, ...] = ()


@dataclass(eq=False)
class EncoderDraft:
    """Everything that decides an encoder or an encoder-decoder; a family's function may change it."""

    d_model: int
    vocab_size: int
    norm: Norm
    head_dim: int | None
    context: int = 0
    gated: bool = False
    buckets: int = 0
    max_distance: int = 128
    token_types: int = 0
    head: HeadKind = "none"
    halves: list[Half] = field(default_factory=list)
    other: tuple[OtherWeight, ...] = ()
    notes: list[str] = field(default_factory=list)
    unsupported: list[UnsupportedSetting] = field(default_factory=list)

    def add_unsupported(self, key: str, value: Any, why: str) -> None:
        """Record a setting that changes attention and is not understood."""
        self.unsupported.append(UnsupportedSetting(key, value, why))


def read_encoder(fields: Fields, family: Family) -> tuple[StackSpec, list[str], list[UnsupportedSetting]]:
    """The model, the notes and the unsupported of an encoder or encoder-decoder."""
    eps = fields.number("norm_eps", 1e-5 if family.norm == "layer" else 1e-6) or 1e-5
    norm = Norm(family.norm, eps, family.gain, family.shift)
    head_dim = None if "head_dim" in family.derived else fields.optional_size("head_dim")
    draft = EncoderDraft(fields.size("d_model"), fields.size("vocab_size"), norm, head_dim)
    draft.gated = family.gated
    fields.raw("is_encoder_decoder")
    draft.halves.append(_half(fields, "encoder"))
    if family.stack == "seq2seq":
        draft.halves.append(_half(fields, "decoder"))
        draft.head = "tied" if fields.flag("tied") else "untied"
    if family.positions == "buckets":
        draft.buckets, draft.max_distance = fields.size("buckets", 32), fields.size("max_distance", 128)
    if family.positions in ("learned", "sinusoidal"):
        draft.context = fields.size("context")
        for half in draft.halves:
            half.position_rows = draft.context + family.position_extra
    draft.unsupported += refused_settings(fields, family)
    if family.finish_encoder is not None:
        family.finish_encoder(fields, draft)
    stacks = tuple(_stack(draft, half, family) for half in draft.halves)
    own = stacks[0].blocks[0].attentions[0]
    sizes = {"head_dim": own.head_dim, "v_head_dim": own.head_dim, "kv_heads": own.num_heads}
    for key, value, taken in fields.stray(sizes, (*family.derived, "v_head_dim", "kv_heads")):
        draft.add_unsupported(key, value, f"transformers' class of {family.name} does not read it and takes {taken}")
    model = StackSpec(
        stacks, vocab_size=draft.vocab_size, head=draft.head, token_types=draft.token_types, context=draft.context,
        other=draft.other,
    )  # fmt: skip
    return model, draft.notes, draft.unsupported


def _half(fields: Fields, role: Role) -> Half:
    layers = fields.optional_size(f"{role}_layers")
    if layers is None:  # T5's decoder is as deep as its encoder where nothing says
        layers = fields.size("encoder_layers")
    if layers > MOST_LAYERS:
        fields.fail(f"{fields.key(f'{role}_layers')} must be at most {MOST_LAYERS}, found {layers}")
    return Half(role, layers, fields.size(f"{role}_heads"), fields.size(f"{role}_width"))


def _stack(draft: EncoderDraft, half: Half, family: Family) -> Stack:
    encoder = half.role == "encoder"
    positions: Positions = NoPositions()
    if draft.buckets:
        positions = RelativeBuckets(draft.buckets, draft.max_distance, encoder)
    attention = AttentionSpec.gqa(
        draft.d_model, half.heads, half.heads, head_dim=draft.head_dim, positions=positions,
        mask=Bidirectional() if encoder else Causal(), bias=family.bias, scale=family.scale or None,
    )  # fmt: skip
    attentions = [attention]
    places = family.norm_places
    if not encoder:
        attentions.append(
            AttentionSpec.gqa(
                draft.d_model, half.heads, half.heads, head_dim=draft.head_dim, mask=Bidirectional(),
                source=Cross(draft.d_model), bias=family.bias, scale=family.scale or None,
            )
        )  # fmt: skip
        places = (places[0], places[0].replace("attention", "cross"), *places[1:])
    block = Block(tuple(attentions), Mlp(half.mlp_width, draft.gated, family.mlp_bias), draft.norm, places)
    return Stack(
        half.role, draft.d_model, (block,) * half.layers, position_rows=half.position_rows,
        relative_buckets=draft.buckets, embedding_norm=draft.norm if family.embedding_norm else None,
        final_norm=draft.norm if family.final_norm else None, other=half.other,
    )  # fmt: skip
