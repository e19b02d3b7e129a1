"""Price: what a model costs, as one frozen value; docs/cost-json.md is written from its fields.

Integers are exact, bytes are bytes. None means that the question does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from manyheads.cost.engines import EngineAnswer
from manyheads.cost.fit import Fit
from manyheads.cost.roofline import StepTime
from manyheads.record import record
from manyheads.report.jsonform import WHERE_ASKED
from manyheads.spec.attention import Scheme
from manyheads.spec.stack import HeadKind, Role

__all__ = [
    "Active", "AtContext", "Decode", "HardwareTimes", "KVCache", "LayerSpec", "Parameters", "Prefill", "Price", "Rank",
    "StepMacs", "Training",
]  # fmt: skip


@record
class LayerSpec:
    """Each distinct attention of the model."""

    role: Role
    kind: Literal["self", "cross"]
    layers: int
    """layers that have it"""
    spec: str
    """its text form"""
    scheme: Scheme
    num_attention_heads: int
    num_key_value_heads: int | None
    head_dim: int
    v_head_dim: int
    parameters: int
    """of one layer"""
    cache_elements_per_token: int
    state_elements: int
    """of one sequence"""


@record
class Active:
    """Elements that take part in one token of a mixture, by the three published conventions."""

    neither: int
    """counting no embedding and no head"""
    head_only: int
    """counting the head"""
    both: int
    """counting both"""


@record
class Parameters:
    """Elements of the weights; the parts `attention` to `other` add up to `total`."""

    total: int
    """elements stored once: parameters, and buffers that are stored (DeepSeek-V3's router corrections)"""
    trainable: int
    """`total` without those buffers"""
    attention: int
    mlp: int
    norm: int
    embedding: int
    head: int
    other: int
    active: Active
    head_kind: HeadKind
    """`tied`: the token table read backwards, counted once"""
    total_untied: int
    """the total if a tied head were stored a second time"""
    bytes: int
    """of all weights, in `weight_dtype`, or what the file holds"""


@record
class KVCache:
    """The ideal: what any engine must keep. A window holds W tokens, the query's own included."""

    bytes_per_token: int
    """slope at an empty context, one sequence"""
    marginal_bytes_per_token: int
    """slope at `context`: windowed layers may have stopped growing"""
    bytes: int
    """all sequences at `context` = `growing_bytes` + `cross_bytes` + `state_bytes`"""
    growing_bytes: int
    """self-attention"""
    cross_bytes: int
    """cross-attention over `source_tokens`, fixed while decoding"""
    state_bytes: int
    """states and convolution inputs of linear layers, whatever the length"""
    product: tuple[str, ...]
    """the product behind each share, as text"""
    expanded_bytes_per_token: int | None
    """of MLA, if keys and values of every head were kept; null without MLA"""


@record
class AtContext:
    """What grows with the context, for each context that was asked for."""

    context: int
    kv_cache_bytes: int
    score_bytes_per_layer: int
    decode_bytes_per_step: int
    cache_share_of_decode: float
    """a fraction"""


@record
class StepMacs:
    """What a step computes; FLOPs = 2 x MACs. Dense: every pair of query and key is counted, as in the literature on
    utilisation; exact: visible pairs only. Softmax, norms, rotations, convolutions in front and embeddings are not counted.
    """

    macs_dense: int
    macs_exact: int
    flops_dense: int
    flops_exact: int
    projection_macs: int
    score_and_mix_macs_dense: int
    """QK^T and PV"""
    score_and_mix_macs_exact: int
    mlp_macs: int
    head_macs: int


@record
class Prefill(StepMacs):
    """`context` tokens of each sequence at once, the head on the last only."""

    bytes: int
    """weights read once + cache written"""
    mla_form: Literal["expanded"]


@record
class Decode(StepMacs):
    """One more token for each sequence after `context` cached ones."""

    bytes_per_token: int
    """`bytes_per_step` / `batch`, rounded up"""
    bytes_per_step: int
    """= `weight_bytes` + `cache_read_bytes` + `cache_write_bytes` + `state_bytes`"""
    weight_bytes: int
    """weights read once over the batch: of a mixture at most batch x active experts, of an untied token table and of learned
    positions one row a sequence, of the encoder nothing"""
    cache_read_bytes: int
    """each sequence's whole visible cache"""
    cache_write_bytes: int
    """the new token's entry"""
    state_bytes: int
    """states of linear layers, read and written"""
    flops_per_byte: float
    """arithmetic intensity of the step"""
    core_flops_per_byte: float
    """arithmetic intensity of attention's core over its cache"""
    cache_outweighs_attention_weights_at_tokens: int | None
    """cached tokens, over all sequences, from which the cache is larger than attention's weights"""
    cache_outweighs_read_weights_at_tokens: int | None
    """the same for all weights that the step reads"""
    mla_form: Literal["absorbed"]


@record
class Training(StepMacs):
    """One step on `context` tokens of each sequence: 3 x forward MACs, nothing recomputed."""

    activation_bytes_naive: int
    """what autograd keeps for the backward pass, scores included; the head's logits apart"""
    activation_bytes_tiled: int
    """the same, attention tiled with a log-sum-exp a row"""


@record
class HardwareTimes:
    """How long the steps take on a device."""

    name: str
    title: str
    source: str
    provenance: str
    """published or measured"""
    bandwidth_bytes_per_second: int
    peak_flops_per_second: Mapping[str, int] = field(hash=False)
    """by arithmetic dtype"""
    memory_bytes: int | None
    prefill: StepTime
    training: StepTime
    decode: StepTime | None = field(default=None, metadata=WHERE_ASKED)
    """absent for an encoder alone"""


@record
class Rank:
    """What one rank of tensor parallelism holds."""

    ranks: int
    weight_bytes_per_rank: int
    kv_cache_bytes_per_rank: int
    kv_bytes_per_token_per_rank: int
    kv_heads_replicated: bool
    latents_on_every_rank: bool


@record
class Price:
    """Everything that one page says about what a model costs."""

    schema: str
    """`manyheads.cost/1`"""
    model: str
    """short name"""
    source: str
    """the path, hub id, census name or words it was read from"""
    notes: tuple[str, ...]
    """what was assumed, left out or found, a sentence each"""
    name: str | None = field(default=None, metadata=WHERE_ASKED, kw_only=True)
    """the change, in an item of `what_if` alone"""
    spec: str
    """text form of the layer (`manyheads.spec.parse` reads it), or of the repeating layers where they differ"""
    layers: int
    """layers of the generating stack: the decoder, or a lone encoder"""
    layer_specs: tuple[LayerSpec, ...]
    context: int
    """tokens of each sequence"""
    source_tokens: int
    """what an encoder in front of the decoder reads; 0 without one"""
    batch: int
    """sequences"""
    weight_dtype: str
    """storage format, as it was asked for"""
    kv_dtype: str
    """the same of the cache: one format, or two as in q8_0/f16"""
    key_dtype: str
    """what `kv_dtype` says of keys; MLA's latents are kept as keys"""
    value_dtype: str
    """what `kv_dtype` says of values"""
    score_dtype: str
    parameters: Parameters
    kv_cache: KVCache
    by_context: tuple[AtContext, ...]
    score_bytes_per_layer: int
    """one copy of the widest layer's score matrix, batch x heads x context x context (x `source_tokens` in cross-attention), as
    code that materialises it holds it"""
    prefill: Prefill
    decode: Decode
    training: Training
    engines: tuple[EngineAnswer, ...]
    hardware: HardwareTimes | None = field(default=None, metadata=WHERE_ASKED)
    """with `--hardware`"""
    tensor_parallel: Rank | None = field(default=None, metadata=WHERE_ASKED)
    """with `--tensor-parallel`"""
    memory: Fit | None = field(default=None, metadata=WHERE_ASKED)
    """with `--memory`"""
    what_if: tuple[Price, ...] = ()
    """with `--what-if`: the same object for each other head layout, plus `name`"""

    def __repr__(self) -> str:
        return (
            f"Price({self.model}: {self.layers} layers, {self.context:,} tokens x {self.batch}, {self.parameters.bytes:,} bytes of "
            f"weights, {self.kv_cache.bytes:,} of cache)"
        )
