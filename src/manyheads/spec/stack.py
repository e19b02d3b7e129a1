"""Blocks, stacks and whole models: what surrounds the attention layers, as far as it costs parameters or compute."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Literal

from manyheads.errors import SpecError
from manyheads.record import record
from manyheads.spec import check
from manyheads.spec.attention import AttentionSpec, Borrowed, Cross
from manyheads.spec.kv import Heads
from manyheads.spec.norms import Norm

__all__ = ["MOST_LAYERS", "NORM_PLACES", "Block", "HeadKind", "Mlp", "Moe", "OtherWeight", "Role", "Stack", "StackSpec"]

# A config that asks for more layers than this is broken; building them would hang rather than fail.
MOST_LAYERS = 10_000

NORM_PLACES = (
    "pre_attention",  # at the sub-layer's input (pre-norm)
    "out_attention",  # on the sub-layer's output, before it is added (Gemma 2, OLMo-2)
    "post_attention",  # after the residual sum (the 2017 paper, BERT)
    "pre_cross",
    "out_cross",
    "post_cross",
    "pre_mlp",
    "out_mlp",
    "post_mlp",
)


@record
class Mlp:
    """Two matrices, width x d_model and back; `gated` adds a third that multiplies (SwiGLU and its kin)."""

    width: int
    gated: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        check.size("mlp width", self.width)
        check.flag("mlp gated", self.gated)
        check.flag("mlp bias", self.bias)


@record
class Moe:
    """A mixture: `experts` MLPs of `width`, of which a router picks `active` a token, beside always-on shared ones.

    `shared_width`: width of all shared experts together, 0 for none; `shared_gate`: one learned gate on them.
    `bias`: bias vectors in the experts. `router_bias`: "none", "weight" (gpt-oss) or "buffer" (DeepSeek-V3's
    correction, stored but not trained by gradient).
    """

    experts: int
    active: int
    width: int
    shared_width: int = 0
    gated: bool = True
    bias: bool = False
    router_bias: str = "none"
    shared_gate: bool = False

    def __post_init__(self) -> None:
        check.size("experts", self.experts)
        check.size("active experts", self.active)
        check.size("expert width", self.width)
        check.size("shared width", self.shared_width, least=0)
        for name in ("gated", "bias", "shared_gate"):
            check.flag(f"moe {name}", getattr(self, name))
        check.one_of("router_bias", self.router_bias, ("none", "weight", "buffer"))
        if self.active > self.experts:
            raise SpecError(f"active experts {self.active} must be at most experts {self.experts}")
        if self.shared_gate and not self.shared_width:
            raise SpecError("a shared gate needs shared experts: shared_width is 0")


@record
class Block:
    """One layer of a model: attentions (self first, then cross; possibly none), an MLP or mixture, and norms.

    `norm` is the kind of all norms of the block, `norm_places` says where they stand (NORM_PLACES). `parallel`:
    attention and MLP read the same input and are added together (GPT-NeoX, Falcon, Cohere).
    """

    attentions: tuple[AttentionSpec, ...]
    mlp: Mlp | Moe | None = None
    norm: Norm | None = None
    norm_places: tuple[str, ...] = ()
    parallel: bool = False

    def __post_init__(self) -> None:
        check.row("attentions", self.attentions)
        check.row("norm_places", self.norm_places)
        if not self.attentions and self.mlp is None:
            raise SpecError("a block needs an attention or an MLP, found neither")
        for attention in self.attentions:
            check.instance("attention", attention, (AttentionSpec,))
        if len({attention.d_model for attention in self.attentions}) > 1:
            raise SpecError(f"attentions of one block differ in d_model: {[a.d_model for a in self.attentions]}")
        if [isinstance(a.source, Cross) for a in self.attentions] not in ([], [False], [True], [False, True]):
            raise SpecError("a block holds at most one self-attention, then at most one cross-attention")
        if self.mlp is not None:
            check.instance("mlp", self.mlp, (Mlp, Moe))
        if self.norm is not None:
            check.instance("block norm", self.norm, (Norm,))
        for place in self.norm_places:
            check.one_of("norm place", place, NORM_PLACES)
        if len(set(self.norm_places)) != len(self.norm_places):
            raise SpecError(f"a norm place is named twice: {', '.join(self.norm_places)}")
        if bool(self.norm_places) != (self.norm is not None):
            raise SpecError(f"norm {self.norm} and norm places {self.norm_places}: give both or neither")
        check.flag("parallel", self.parallel)

    @property
    def attention(self) -> AttentionSpec | None:
        """The self-attention, None where the block has none."""
        return next((a for a in self.attentions if not isinstance(a.source, Cross)), None)

    @property
    def cross(self) -> AttentionSpec | None:
        """The cross-attention, None where the block has none."""
        return next((a for a in self.attentions if isinstance(a.source, Cross)), None)


@record
class OtherWeight:
    """A tensor that is neither attention, MLP, norm nor embedding (a convolution in front, a pooler): name and shape."""

    name: str
    shape: tuple[int, ...]
    buffer: bool = False

    def __post_init__(self) -> None:
        check.text("weight name", self.name)
        check.row(f"{self.name} shape", self.shape)
        for length in self.shape:
            check.size(f"{self.name} shape", length)
        check.flag("buffer", self.buffer)


Role = Literal["encoder", "decoder"]
HeadKind = Literal["tied", "untied", "none"]


@record
class Stack:
    """Blocks in a row, encoder or decoder, with what stands before the first and after the last.

    `position_rows`: rows of a table of learned (or stored sinusoidal) positions, 0 for none. `relative_buckets`: rows
    of T5's one shared bias table, 0 for none. `embedding_norm`: after the embeddings (BERT, BLOOM). `final_norm`: after
    the last block.
    """

    role: Role
    d_model: int
    blocks: tuple[Block, ...]
    position_rows: int = 0
    relative_buckets: int = 0
    embedding_norm: Norm | None = None
    final_norm: Norm | None = None
    other: tuple[OtherWeight, ...] = ()

    def __post_init__(self) -> None:
        check.one_of("stack role", self.role, ("encoder", "decoder"))
        check.size("d_model", self.d_model)
        check.row("blocks", self.blocks)
        check.row("other", self.other)
        check.size("layers", len(self.blocks), most=MOST_LAYERS)
        check.size("position_rows", self.position_rows, least=0)
        check.size("relative_buckets", self.relative_buckets, least=0)
        for kind in ("embedding_norm", "final_norm"):
            if getattr(self, kind) is not None:
                check.instance(kind, getattr(self, kind), (Norm,))
        for other in self.other:
            check.instance("other", other, (OtherWeight,))
        for index, block in enumerate(self.blocks):
            check.instance(f"layer {index}", block, (Block,))
            for attention in block.attentions:
                if attention.d_model != self.d_model:
                    raise SpecError(f"layer {index} has d_model {attention.d_model}, its stack {self.d_model}")
                if isinstance(attention.source, Borrowed):
                    self._check_source_layer(index, attention, attention.source.layer)
        if self.relative_buckets and not any(block.attentions for block in self.blocks):
            raise SpecError(f"{self.relative_buckets} relative_buckets need an attention layer, found none")

    def _check_source_layer(self, index: int, attention: AttentionSpec, source: int) -> None:
        if source >= index:
            raise SpecError(f"layer {index} shares the keys and values of layer {source}, which must come before it")
        owner = self.blocks[source].attention
        if owner is None or isinstance(owner.source, Borrowed) or not isinstance(owner.kv, Heads):
            raise SpecError(f"layer {index} shares the keys and values of layer {source}, which keeps none of its own")
        if owner.kv != attention.kv:
            raise SpecError(f"layer {index} reads {attention.kv}, but its source layer {source} keeps {owner.kv}")

    @cached_property
    def groups(self) -> tuple[tuple[Block, int], ...]:
        """Distinct blocks with how often each occurs, in order of first appearance: what sums over layers run over."""
        return tuple(Counter(self.blocks).items())


@record
class StackSpec:
    """A whole model: encoder, decoder or both, token embeddings and head.

    `vocab_size`: stored rows, padding included; 0 for a model without tokens. `head`: "tied" (the token table read
    backwards, stored once), "untied" or "none". `token_types`: rows of BERT's segment table. `context`: positions the
    model is made for, 0 where nothing says. `head_softcap`: Gemma 2's cap on the final logits.
    """

    stacks: tuple[Stack, ...]
    vocab_size: int = 0
    head: HeadKind = "none"
    head_bias: bool = False
    head_softcap: float | None = None
    token_types: int = 0
    context: int = 0
    other: tuple[OtherWeight, ...] = ()

    def __post_init__(self) -> None:
        check.row("stacks", self.stacks)
        check.row("other", self.other)
        for stack in self.stacks:
            check.instance("stack", stack, (Stack,))
        for other in self.other:
            check.instance("other", other, (OtherWeight,))
        roles = [stack.role for stack in self.stacks]
        if roles not in (["encoder"], ["decoder"], ["encoder", "decoder"]):
            raise SpecError(f"a model is an encoder, a decoder, or an encoder then a decoder; found {roles}")
        check.size("vocab_size", self.vocab_size, least=0)
        check.one_of("head", self.head, ("tied", "untied", "none"))
        check.flag("head_bias", self.head_bias)
        if self.head_softcap is not None:
            check.number("head_softcap", self.head_softcap)
        check.size("token_types", self.token_types, least=0)
        check.size("context", self.context, least=0)
        if self.head != "none" and not self.vocab_size:
            raise SpecError(f"a head ({self.head}) needs a vocabulary, vocab_size is 0")
        if self.head_bias and self.head == "none":
            raise SpecError("a head bias needs a head, found none")
        self._check_memory()

    def _check_memory(self) -> None:
        encoder, decoder = self.encoder, self.decoder
        for index, block in enumerate(decoder.blocks if decoder else ()):
            if block.cross is not None and encoder is None:
                continue  # a decoder taken alone may still read a memory
            if block.cross is not None and encoder is not None and block.cross.d_source != encoder.d_model:
                raise SpecError(
                    f"decoder layer {index} reads a memory of width {block.cross.d_source}, the encoder is "
                    f"{encoder.d_model} wide"
                )

    @property
    def encoder(self) -> Stack | None:
        """The encoder, None where there is none."""
        return next((s for s in self.stacks if s.role == "encoder"), None)

    @property
    def decoder(self) -> Stack | None:
        """The decoder, None where there is none."""
        return next((s for s in self.stacks if s.role == "decoder"), None)

    @property
    def main(self) -> Stack:
        """The stack that generates: the decoder where there is one, else the encoder."""
        return self.decoder or self.stacks[0]

    @property
    def most_tokens(self) -> int:
        """Tokens that the main stack reads at once at most: the context, else the rows of its table of positions; 0 where
        nothing says.
        """
        return self.context or self.main.position_rows

    @property
    def layers(self) -> int:
        """Layers of the main stack."""
        return len(self.main.blocks)
