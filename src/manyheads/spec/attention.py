"""AttentionSpec: what one attention layer is. Layer, cache, cost, checkpoint layout and report are functions of it."""

from __future__ import annotations

from typing import Literal

from manyheads.errors import SpecError
from manyheads.quoting import shown
from manyheads.record import record
from manyheads.spec import check
from manyheads.spec.kv import KV, Heads, Latent, State
from manyheads.spec.masks import Band, Bidirectional, Causal, Chunk, Mask, Window
from manyheads.spec.norms import QKNorm
from manyheads.spec.positions import Alibi, NoPositions, Positions, RelativeBuckets, Rope

__all__ = ["AttentionSpec", "Bias", "Borrowed", "Cross", "Scheme", "Self", "Source"]


@record
class Self:
    """Keys and values come from the tokens themselves."""


@record
class Cross:
    """Keys and values come from a memory of width `d_memory` (an encoder's output), projected once a memory token."""

    d_memory: int

    def __post_init__(self) -> None:
        check.size("d_memory", self.d_memory)


@record
class Borrowed:
    """Keys and values are those that layer `layer` of the same stack keeps: no k or v weights, no cache of its own."""

    layer: int

    def __post_init__(self) -> None:
        check.size("borrowed layer", self.layer, least=0)


Source = Self | Cross | Borrowed
Scheme = Literal["mha", "gqa", "mqa", "mla", "linear"]


@record
class Bias:
    """Which of the four projections add a bias vector. In MLA, q and k/v mean the down-projections."""

    q: bool = False
    k: bool = False
    v: bool = False
    o: bool = False

    def __post_init__(self) -> None:
        for name in ("q", "k", "v", "o"):
            check.flag(f"bias {name}", getattr(self, name))

    @classmethod
    def of(cls, letters: str) -> Bias:
        """The biases named by `letters`, a subset of "qkvo"."""
        if not set(letters) <= set("qkvo") or len(set(letters)) != len(letters):
            raise SpecError(f"bias must name projections by the letters q, k, v, o, each once; found {shown(letters)}")
        return cls(**dict.fromkeys(letters, True))

    @property
    def letters(self) -> str:
        """The projections that have a bias, as in "qkv"."""
        return "".join(name for name in "qkvo" if getattr(self, name))


@record(kw_only=True)
class AttentionSpec:
    """One attention layer of the family, said in full.

        head_h = softmax(cap(scale · q_h k_{h // (H/K)}^T) + bias, visible) v_{h // (H/K)};  y = [head_1 .. head_H] W_o

    d_model        width of the tokens, m
    num_heads      query heads, H
    kv             what is kept of keys and values: Heads, Latent or State
    positions      what acts inside attention: NoPositions, Rope, Alibi, RelativeBuckets
    mask           Bidirectional, Causal, Window, Band or Chunk
    source         Self, Cross or Borrowed
    bias           bias vectors of the four projections
    scale          factor on the logits, always explicit (1/sqrt(head_dim) in the paper, 1 in T5); of linear attention it
                   acts where the sum is not normalised, and cancels where it is
    softcap        logits become softcap · tanh(logits / softcap) (Gemma 2); None for no cap
    sinks          one learned extra logit a head in the softmax's denominator (gpt-oss)
    qk_norm        norm of queries and keys; None for none
    output_gate    a gate, d_model wide, on the heads' outputs (Qwen3-Next)

    Sizes are checked where they meet; the message of a SpecError holds both numbers. Source: arXiv 1706.03762,
    section 3.2 [facts: A14, A19].
    """

    d_model: int
    num_heads: int
    kv: KV
    positions: Positions
    mask: Mask
    source: Source = Self()
    bias: Bias = Bias()
    scale: float
    softcap: float | None = None
    sinks: bool = False
    qk_norm: QKNorm | None = None
    output_gate: bool = False

    def __post_init__(self) -> None:
        check.size("d_model", self.d_model)
        check.size("num_heads", self.num_heads)
        check.instance("kv", self.kv, (Heads, Latent, State))
        check.instance("positions", self.positions, (NoPositions, Rope, Alibi, RelativeBuckets))
        check.instance("mask", self.mask, (Bidirectional, Causal, Window, Band, Chunk))
        check.instance("source", self.source, (Self, Cross, Borrowed))
        check.instance("bias", self.bias, (Bias,))
        check.number("scale", self.scale)
        if self.softcap is not None:
            check.number("softcap", self.softcap)
        check.flag("sinks", self.sinks)
        check.flag("output_gate", self.output_gate)
        if self.qk_norm is not None:
            check.instance("qk_norm", self.qk_norm, (QKNorm,))
        self._check_heads()
        self._check_positions()
        self._check_source()

    def _check_heads(self) -> None:
        if isinstance(self.kv, Heads) and self.num_heads % self.kv.num_kv_heads:
            raise SpecError(
                f"num_heads {self.num_heads} must be a multiple of num_kv_heads {self.kv.num_kv_heads}, "
                "so that each key/value head serves equally many query heads"
            )
        if isinstance(self.kv, State):
            few, many = sorted((self.num_heads, self.kv.num_state_heads))
            if many % few:
                raise SpecError(
                    f"num_heads {self.num_heads} and num_state_heads {self.kv.num_state_heads}: one must divide the other"
                )
            if self.softcap is not None or self.sinks:
                raise SpecError("softcap and sinks act on a softmax; linear attention (State) has none")
            if not isinstance(self.mask, Causal | Bidirectional):
                raise SpecError(f"linear attention (State) is causal or bidirectional, found {self.mask}")
        if isinstance(self.kv, Latent) and self.bias.k != self.bias.v:
            raise SpecError("in latent attention keys and values share one down-projection: bias k and v must be equal")
        if self.qk_norm is not None and not isinstance(self.kv, Heads):
            raise SpecError(
                f"qk_norm is defined for Heads, found {type(self.kv).__name__} (a latent has norms of its own)"
            )

    def _check_positions(self) -> None:
        rope_dim = self.positions.dim if isinstance(self.positions, Rope) else 0
        if isinstance(self.kv, Latent):
            if rope_dim != self.kv.rope_dim:
                raise SpecError(
                    f"latent attention turns its rotary key: rope dim {rope_dim} must equal rope_dim {self.kv.rope_dim}"
                )
        elif rope_dim > self.head_dim:
            raise SpecError(f"rope dim {rope_dim} must be at most head_dim {self.head_dim}")
        if isinstance(self.kv, State) and isinstance(self.positions, Alibi | RelativeBuckets):
            raise SpecError(f"{type(self.positions).__name__} is a bias on logits; linear attention (State) has none")

    def _check_source(self) -> None:
        if isinstance(self.source, Cross) and not isinstance(self.mask, Bidirectional):
            raise SpecError(f"cross-attention sees the whole memory: its mask must be Bidirectional, found {self.mask}")
        if isinstance(self.source, Borrowed) and not isinstance(self.kv, Heads):
            raise SpecError(f"only Heads can be borrowed from another layer, found {type(self.kv).__name__}")
        if isinstance(self.kv, State) and isinstance(self.source, Cross):
            raise SpecError(
                "linear attention (State) over a memory is not described here; use Heads for cross-attention"
            )

    @property
    def head_dim(self) -> int:
        """Size of a query or key head, q."""
        return self.kv.head_dim

    @property
    def v_head_dim(self) -> int:
        """Size of a value head, v."""
        return self.kv.v_head_dim

    @property
    def num_output_heads(self) -> int:
        """Heads that enter the output projection: H, or the state heads of linear attention where they are more."""
        return max(self.num_heads, self.kv.num_state_heads) if isinstance(self.kv, State) else self.num_heads

    @property
    def d_source(self) -> int:
        """Width of what keys and values are projected from."""
        return self.source.d_memory if isinstance(self.source, Cross) else self.d_model

    @property
    def scheme(self) -> Scheme:
        """The field's name of the layer: mha, gqa, mqa, mla or linear."""
        if isinstance(self.kv, Latent):
            return "mla"
        if isinstance(self.kv, State):
            return "linear"
        if self.kv.num_kv_heads == self.num_heads:
            return "mha"
        return "mqa" if self.kv.num_kv_heads == 1 else "gqa"

    @classmethod
    def gqa(
        cls,
        d_model: int,
        num_heads: int,
        num_kv_heads: int,
        *,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        positions: Positions = NoPositions(),
        mask: Mask = Causal(),
        source: Source = Self(),
        bias: str = "",
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        qk_norm: QKNorm | None = None,
        output_gate: bool = False,
    ) -> AttentionSpec:
        """Grouped-query attention; what is left out is the paper's: head_dim d_model/H, v = q, scale 1/sqrt(head_dim)."""
        q = even_head_dim(d_model, num_heads) if head_dim is None else head_dim
        heads = Heads(num_kv_heads, q, q if v_head_dim is None else v_head_dim)
        return cls(
            d_model=d_model, num_heads=num_heads, kv=heads, positions=positions, mask=mask, source=source,
            bias=Bias.of(bias), scale=q**-0.5 if scale is None else scale, softcap=softcap, sinks=sinks,
            qk_norm=qk_norm, output_gate=output_gate,
        )  # fmt: skip

    @classmethod
    def mha(
        cls,
        d_model: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        positions: Positions = NoPositions(),
        mask: Mask = Causal(),
        bias: str = "",
    ) -> AttentionSpec:
        """Multi-head attention of the 2017 paper: every query head has its own key/value head."""
        return cls.gqa(d_model, num_heads, num_heads, head_dim=head_dim, positions=positions, mask=mask, bias=bias)

    @classmethod
    def mqa(
        cls,
        d_model: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        positions: Positions = NoPositions(),
        mask: Mask = Causal(),
        bias: str = "",
    ) -> AttentionSpec:
        """Multi-query attention: one key/value head for all query heads (arXiv 1911.02150)."""
        return cls.gqa(d_model, num_heads, 1, head_dim=head_dim, positions=positions, mask=mask, bias=bias)

    @classmethod
    def mla(
        cls,
        d_model: int,
        num_heads: int,
        *,
        rank: int,
        nope_dim: int,
        rope_dim: int,
        v_head_dim: int,
        q_rank: int = 0,
        rope_base: float = 10000.0,
        mask: Mask = Causal(),
        bias: str = "",
        scale: float | None = None,
    ) -> AttentionSpec:
        """Multi-head latent attention with DeepSeek's interleaved rotary key; scale 1/sqrt(nope_dim + rope_dim)."""
        latent = Latent(rank, nope_dim, rope_dim, v_head_dim, q_rank)
        positions = Rope(rope_dim, float(rope_base), "interleaved") if rope_dim else NoPositions()
        return cls(
            d_model=d_model, num_heads=num_heads, kv=latent, positions=positions, mask=mask, bias=Bias.of(bias),
            scale=latent.head_dim**-0.5 if scale is None else scale,
        )  # fmt: skip

    @classmethod
    def linear(
        cls,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        feature_map: str = "elu+1",
        feature_dim: int | None = None,
        positions: Positions = NoPositions(),
        mask: Mask = Causal(),
    ) -> AttentionSpec:
        """Linear attention with a normalised running sum (arXiv 2006.16236); one state a key/value head."""
        q = even_head_dim(d_model, num_heads) if head_dim is None else head_dim
        heads = num_heads if num_kv_heads is None else num_kv_heads
        state = State(
            heads, heads, heads, q, q if feature_dim is None else feature_dim,
            q if v_head_dim is None else v_head_dim, feature_map,
        )  # fmt: skip
        return cls(d_model=d_model, num_heads=num_heads, kv=state, positions=positions, mask=mask, scale=q**-0.5)


def even_head_dim(d_model: int, num_heads: int) -> int:
    """d_model / num_heads where it divides; else a SpecError with both numbers."""
    check.size("d_model", d_model)
    check.size("num_heads", num_heads)
    if d_model % num_heads:
        raise SpecError(
            f"d_model {d_model} is not a multiple of num_heads {num_heads}; give head_dim, or {nearest(d_model, num_heads)}"
        )
    return d_model // num_heads


def nearest(d_model: int, num_heads: int) -> str:
    """The head counts on either side of `num_heads` that divide `d_model`, for a message; looks 4,096 steps each way."""
    below = next((n for n in range(num_heads, max(num_heads - 4096, 0), -1) if d_model % n == 0), 1)
    above = next((n for n in range(num_heads, min(d_model, num_heads + 4096) + 1) if d_model % n == 0), below)
    return f"{below} head{'s' if below > 1 else ''}" if above == below else f"{below} or {above} heads"
