"""The cost of a whole model under a workload: MACs of prefill, decode and training, cache and traffic in bytes.

Every figure is a sum over layers of `cost.layer` and `cost.formulas`; layers that are equal are priced once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from manyheads.cost import formulas, layer
from manyheads.cost.algebra import Number
from manyheads.cost.parameters import idle_elements
from manyheads.cost.workload import Workload
from manyheads.record import record
from manyheads.spec.attention import AttentionSpec, Cross
from manyheads.spec.inventory import Weight, count, weights
from manyheads.spec.stack import Block, Mlp, Moe, Stack, StackSpec

__all__ = [
    "CacheBytes",
    "Macs",
    "attentions",
    "cache_bytes",
    "cache_bytes_a_token",
    "cache_slope",
    "decode_core_macs",
    "decode_macs",
    "decode_traffic",
    "mlp_token_macs",
    "prefill_macs",
    "read_weight_elements",
    "training_macs",
]


@record
class Macs:
    """MACs of one pass, by part. QK^T and PV in both conventions: `dense` counts every pair, `exact` the visible."""

    projections: Number
    core_dense: Number
    core_exact: Number
    mlp: Number
    head: Number

    @property
    def dense(self) -> Number:
        """All MACs, every pair of query and key counted: comparable with the literature on utilisation."""
        return self.projections + self.core_dense + self.mlp + self.head

    @property
    def exact(self) -> Number:
        """All MACs, only visible pairs counted."""
        return self.projections + self.core_exact + self.mlp + self.head

    def __add__(self, other: Macs) -> Macs:
        return Macs(
            self.projections + other.projections,
            self.core_dense + other.core_dense,
            self.core_exact + other.core_exact,
            self.mlp + other.mlp,
            self.head + other.head,
        )

    def times(self, factor: Number) -> Macs:
        """Every part multiplied by `factor`."""
        return Macs(
            factor * self.projections,
            factor * self.core_dense,
            factor * self.core_exact,
            factor * self.mlp,
            factor * self.head,
        )


def mlp_token_macs(mlp: Mlp | Moe | None, d_model: int) -> int:
    """MACs of the MLP a token: of a mixture, its router, the active experts, the shared ones and their gate."""
    if mlp is None:
        return 0
    matrices = 3 if mlp.gated else 2
    if isinstance(mlp, Mlp):
        return int(formulas.mlp_macs(d_model, mlp.width, matrices))
    experts = mlp.active * mlp.width + mlp.shared_width
    return int(formulas.mlp_macs(d_model, experts, matrices)) + d_model * (mlp.experts + mlp.shared_gate)


def _block_macs(block: Block, d_model: int, queries: Number, keys: Number, memory: Number, form: str) -> Macs:
    """One block over `queries` new tokens, the last of `keys`; a memory of `memory` tokens is projected elsewhere."""
    projections, dense, exact = 0 * queries, 0 * queries, 0 * queries
    for attention in block.attentions:
        crossing = isinstance(attention.source, Cross)
        projections += queries * layer.query_token_macs(attention)
        if not crossing:
            projections += queries * layer.key_token_macs(attention)
        core = layer.core_macs(attention, queries, memory if crossing else keys, form)
        dense, exact = dense + core[0], exact + core[1]
    return Macs(projections, dense, exact, queries * mlp_token_macs(block.mlp, d_model), 0 * queries)


def _stack_macs(stack: Stack, queries: Number, keys: Number, memory: Number, form: str) -> Macs:
    total = Macs(0, 0, 0, 0, 0)
    for block, times in stack.groups:
        total = total + _block_macs(block, stack.d_model, queries, keys, memory, form).times(times)
    return total


def _memory_macs(stack: Stack, memory: Number) -> Macs:
    """Projecting the encoder's output to keys and values, once for each layer that crosses."""
    each = sum(times * layer.key_token_macs(block.cross) for block, times in stack.groups if block.cross)
    return Macs(memory * each, 0, 0, 0, 0)


def _head_macs(model: StackSpec, tokens: Number) -> Macs:
    rows = 0 if model.head == "none" else model.vocab_size * model.main.d_model
    return Macs(0, 0, 0, 0, tokens * rows)


def _forward(model: StackSpec, load: Workload, head_tokens: Number) -> Macs:
    total = _head_macs(model, head_tokens)
    memory = load.source_tokens
    if model.encoder is not None:
        tokens = memory if model.decoder is not None else load.context
        total = total + _stack_macs(model.encoder, tokens, tokens, 0, "expanded")
    if model.decoder is not None:
        total = total + _memory_macs(model.decoder, memory)
        total = total + _stack_macs(model.decoder, load.context, load.context, memory, "expanded")
    return total.times(load.batch)


def prefill_macs(model: StackSpec, load: Workload) -> Macs:
    """MACs of reading `context` tokens of each sequence at once; the head runs on the last token only.

    With an encoder: it reads `source_tokens`, the decoder then `context` tokens. MLA runs expanded.
    """
    head_tokens = load.context if model.decoder is None else 1
    return _forward(model, load, head_tokens)


def training_macs(model: StackSpec, load: Workload) -> Macs:
    """MACs of one training step, 3 x forward (so 6 x MACs in FLOPs), the head on every token; no recomputation."""
    return _forward(model, load, load.context).times(formulas.training_macs(1))


def decode_macs(model: StackSpec, load: Workload) -> Macs:
    """MACs of one more token for each sequence after `context` cached ones; MLA runs absorbed."""
    if model.decoder is None:
        return Macs(0, 0, 0, 0, 0)
    step = _stack_macs(model.decoder, 1, load.context + 1, load.source_tokens, "absorbed") + _head_macs(model, 1)
    return step.times(load.batch)


def decode_core_macs(model: StackSpec, load: Workload) -> Number:
    """The share of `decode_macs` that QK^T, PV and running states take, visible pairs only."""
    return decode_macs(model, load).core_exact


def attentions(model: StackSpec) -> Iterable[tuple[AttentionSpec, int]]:
    """The distinct attentions of the generating stack, each with how often it occurs."""
    found: dict[AttentionSpec, int] = {}
    for block, times in model.main.groups:
        for attention in block.attentions:
            found[attention] = found.get(attention, 0) + times
    return found.items()


def _sum(model: StackSpec, term: Callable[[AttentionSpec], Number]) -> Number:
    return sum(times * term(attention) for attention, times in attentions(model))


@record
class CacheBytes:
    """Bytes that a cache must hold at best, all sequences: what grows, what an encoder's memory adds, fixed states."""

    growing: Number
    cross: Number
    state: Number

    @property
    def total(self) -> Number:
        """All of it."""
        return self.growing + self.cross + self.state


def cache_bytes_a_token(model: StackSpec, dtype: str) -> int:
    """Bytes that the second token of a sequence adds to its cache, in one numeric format; 0 of an encoder."""
    one, two = (cache_bytes(model, Workload(tokens, kv_dtype=dtype, state_dtype=dtype)).total for tokens in (1, 2))
    return int(two - one)


def cache_bytes(model: StackSpec, load: Workload, tokens: Number | None = None) -> CacheBytes:
    """Ideal cache bytes after `tokens` tokens (default: the workload's context) of each sequence.

    Windows hold at most W tokens, borrowed layers nothing, linear layers a fixed state and the inputs of their
    convolution, two-sided layers nothing, cross-attention one entry a memory token.
    """
    held = load.context if tokens is None else tokens
    if model.decoder is None:
        return CacheBytes(0, 0, 0)
    state = _sum(model, layer.state_elements) + _sum(model, layer.conv_elements)
    return CacheBytes(
        _kv_bytes(model, load, load.batch, lambda a: layer.tokens_held(a, held)),
        _kv_bytes(model, load, load.batch, lambda a: layer.tokens_held(a, 0, load.source_tokens)),
        load.state.bytes(load.batch * state),
    )


def _kv_bytes(
    model: StackSpec, load: Workload, batch: Number, tokens: Callable[[AttentionSpec], Number], *, read: bool = False
) -> Number:
    """Bytes of keys and values of so many tokens of each attention: of those it keeps, or of those that it reads."""
    parts = layer.read_parts if read else layer.cache_parts
    keys, values = (_sum(model, lambda a, i=i: tokens(a) * parts(a)[i]) for i in (0, 1))  # type: ignore[misc]
    return load.kv.bytes(batch * keys, batch * values)


def cache_slope(model: StackSpec, load: Workload, tokens: Number) -> Number:
    """Bytes that one more token adds to one sequence's cache after `tokens` tokens."""
    if model.decoder is None:
        return 0
    return _kv_bytes(model, load, 1, lambda a: layer.tokens_held(a, tokens + 1) - layer.tokens_held(a, tokens))


def full_slope_elements(model: StackSpec) -> int:
    """Elements a token of every layer of the main stack, whether or not it keeps a cache in use (BERT does not)."""
    return sum(times * layer.cache_elements(a) for a, times in attentions(model) if not isinstance(a.source, Cross))


def read_weight_elements(model: StackSpec, batch: int) -> int:
    """Weight elements that one decode step of `batch` sequences reads: once for all of them.

    All of the decoder and the head, but of a mixture only experts that can be active, of an untied token table and of
    learned positions one row a sequence, of cross-attention not W_k and W_v (the memory is projected once), of the
    encoder nothing.
    """
    if model.decoder is None:
        return 0
    inventory = [w for w in weights(model) if not w.name.startswith("encoder.")]
    once = sum(w.elements for w in inventory if not _skipped(w, model))
    rows = model.decoder.d_model * (
        int(model.head != "tied" and model.vocab_size > 0) + bool(model.decoder.position_rows)
    )
    return once - idle_elements(model.decoder, batch) + batch * rows


def _skipped(weight: Weight, model: StackSpec) -> bool:
    if weight.name == "tokens":
        return model.head != "tied"
    if weight.name in ("decoder.positions", "token_types"):
        return True
    return ".cross." in weight.name and weight.name.rsplit(".cross.")[-1].split(".")[0] in ("k", "v")


@record
class Traffic:
    """Bytes that one decode step moves: weights once for the batch, each sequence's cache, what is written."""

    weights: Number
    cache_read: Number
    cache_write: Number
    state: Number

    @property
    def total(self) -> Number:
        """All of it."""
        return self.weights + self.cache_read + self.cache_write + self.state


def decode_traffic(model: StackSpec, load: Workload) -> Traffic:
    """Bytes of one decode step after `context` cached tokens: a new token reads the whole cache once and writes its own.

    A running state is read and written.
    """
    if model.decoder is None:
        return Traffic(0, 0, 0, 0)
    state = _sum(model, layer.state_elements) + _sum(model, layer.conv_elements)
    return Traffic(
        weight_bytes(model, load, read_weight_elements(model, load.batch)),
        _kv_bytes(model, load, load.batch, lambda a: layer.tokens_held(a, load.context, load.source_tokens), read=True),
        _kv_bytes(model, load, load.batch, lambda a: int(not isinstance(a.source, Cross))),
        2 * load.state.bytes(load.batch * state),
    )


def weight_bytes(model: StackSpec, load: Workload, elements: int) -> int:
    """Bytes of `elements` weights: in the workload's format, or at the mean size that the file's bytes give."""
    if not load.weight_bytes:
        return int(load.weight.bytes(elements))
    stored = count(weights(model), buffers=True)
    return -(-load.weight_bytes * elements // stored)
