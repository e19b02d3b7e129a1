"""A model half read: the choices that configuration and family have made, before they become a frozen StackSpec."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from manyheads.spec.attention import AttentionSpec, Bias, Borrowed, Self
from manyheads.spec.kv import Heads, Latent
from manyheads.spec.masks import Band, Bidirectional, Causal, Chunk, Mask, Window
from manyheads.spec.norms import Norm, QKNorm
from manyheads.spec.positions import NoPositions, Positions
from manyheads.spec.stack import Block, HeadKind, Mlp, Moe, OtherWeight, Role, Stack, StackSpec

__all__ = ["CHUNKED", "FULL", "KINDS", "LINEAR", "SLIDING", "Draft", "UnsupportedSetting", "build_decoder"]

FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
KINDS = (FULL, SLIDING, CHUNKED, LINEAR)


@dataclass(frozen=True, eq=False, repr=False)
class UnsupportedSetting:
    """A setting that changes attention in a way that is not understood: its key, its value and what is missing."""

    key: str
    value: Any
    why: str


@dataclass(eq=False, repr=False)
class Draft:
    """Everything that decides a decoder, or an encoder of a decoder's kind; a family's function may change it.

    window        of an encoder: the keys that a query sees on each side of itself
    first_places  the norms of the first block, where they stand elsewhere than in the others
    """

    d_model: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    scale: float
    role: Role = "decoder"
    vocab_size: int = 0
    context: int = 0
    mlp_width: int = 0
    gated: bool = True
    mlp_bias: bool = False
    bias: Bias = Bias()
    norm: Norm | None = None
    norm_places: tuple[str, ...] = ()
    first_places: tuple[str, ...] | None = None
    final_norm: Norm | None = None
    embedding_norm: Norm | None = None
    parallel: bool = False
    softcap: float | None = None
    sinks: bool = False
    output_gate: bool = False
    qk_norm: QKNorm | None = None
    kinds: list[str] = field(default_factory=list)
    window: int = 0
    chunk: int = 0
    positions: dict[str, Positions] = field(default_factory=dict)
    unrotated: frozenset[int] = frozenset()
    latent: Latent | None = None
    linear: AttentionSpec | None = None
    moe: Moe | None = None
    moe_layers: frozenset[int] = frozenset()
    source_layers: dict[int, int] = field(default_factory=dict)
    position_rows: int = 0
    tied: bool = False
    head_bias: bool = False
    head_softcap: float | None = None
    token_types: int = 0
    other: tuple[OtherWeight, ...] = ()
    notes: list[str] = field(default_factory=list)
    unsupported: list[UnsupportedSetting] = field(default_factory=list)

    def add_unsupported(self, key: str, value: Any, why: str) -> None:
        """Record a setting that changes attention and is not understood."""
        self.unsupported.append(UnsupportedSetting(key, value, why))

    def assume_full(self) -> None:
        """Make every layer plain full attention, whatever was read."""
        self.kinds = [FULL] * self.layers
        self.latent, self.linear, self.softcap, self.output_gate = None, None, None, False
        self.source_layers, self.sinks = {}, False
        self.scale = self.head_dim**-0.5


def build_decoder(draft: Draft) -> StackSpec:
    """The frozen model of a draft; equal layers share one Block."""
    made: dict[tuple[object, ...], Block] = {}
    blocks = []
    for index, kind in enumerate(draft.kinds):
        first = index == 0 and draft.first_places is not None
        key = (kind, index in draft.unrotated, index in draft.moe_layers, draft.source_layers.get(index, -1), first)
        if key not in made:
            made[key] = _block(draft, index)
        blocks.append(made[key])
    stack = Stack(
        draft.role, draft.d_model, tuple(blocks), position_rows=draft.position_rows,
        embedding_norm=draft.embedding_norm, final_norm=draft.final_norm,
    )  # fmt: skip
    head: HeadKind = "none" if not draft.vocab_size or draft.role == "encoder" else "tied" if draft.tied else "untied"
    return StackSpec(
        (stack,), vocab_size=draft.vocab_size, head=head, head_bias=draft.head_bias, context=draft.context,
        head_softcap=draft.head_softcap, token_types=draft.token_types, other=draft.other,
    )  # fmt: skip


def _block(draft: Draft, index: int) -> Block:
    kind = draft.kinds[index]
    if kind == LINEAR and draft.linear is not None:
        attention = draft.linear
    else:
        attention = _attention(
            draft, kind, unrotated=index in draft.unrotated, source_layer=draft.source_layers.get(index, -1)
        )
    mlp: Mlp | Moe | None = draft.moe if index in draft.moe_layers else None
    if mlp is None and draft.mlp_width:
        mlp = Mlp(draft.mlp_width, draft.gated, draft.mlp_bias)
    places = draft.norm_places
    if index == 0 and draft.first_places is not None:
        places = draft.first_places
    return Block((attention,), mlp, draft.norm, places if draft.norm is not None else (), draft.parallel)


def _attention(draft: Draft, kind: str, *, unrotated: bool, source_layer: int) -> AttentionSpec:
    encoder = draft.role == "encoder"
    masks: dict[str, Mask] = {FULL: Bidirectional() if encoder else Causal()}
    if draft.window:
        masks[SLIDING] = Band(draft.window) if encoder else Window(draft.window)
    if draft.chunk:
        masks[CHUNKED] = Chunk(draft.chunk)
    positions = NoPositions() if unrotated else draft.positions.get(kind, draft.positions.get(FULL, NoPositions()))
    kv: Heads | Latent = draft.latent or Heads(draft.kv_heads, draft.head_dim, draft.v_head_dim)
    return AttentionSpec(
        d_model=draft.d_model, num_heads=draft.heads, kv=kv, positions=positions, mask=masks[kind],
        source=Borrowed(source_layer) if source_layer >= 0 else Self(), bias=draft.bias, scale=draft.scale,
        softcap=draft.softcap, sinks=draft.sinks, qk_norm=draft.qk_norm, output_gate=draft.output_gate,
    )  # fmt: skip
