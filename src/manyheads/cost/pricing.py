"""price: everything that one page says about what a model costs, as one value (`cost.price_record`).

The tables (`cost.tables`) and the JSON are functions of it, so that what is printed and what is computed cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, TypeVar

from manyheads.cost import formulas, layer, model
from manyheads.cost.algebra import ceil_div
from manyheads.cost.capacity import all_weight_bytes
from manyheads.cost.dtypes import KVDType
from manyheads.cost.dtypes import kv_dtype as formats
from manyheads.cost.engines import EngineAnswer, engine_answers
from manyheads.cost.fit import fit
from manyheads.cost.pairs import keys_held
from manyheads.cost.parallel import MOST_RANKS, rank_of
from manyheads.cost.parameters import active_parameters, parameter_parts, stored_parameters
from manyheads.cost.price_record import (
    Active,
    AtContext,
    Decode,
    HardwareTimes,
    KVCache,
    LayerSpec,
    Parameters,
    Prefill,
    Price,
    Rank,
    StepMacs,
    Training,
)
from manyheads.cost.roofline import Machine, StepTime, roofline
from manyheads.cost.training import kept_activation_bytes
from manyheads.cost.whatif import what_if as changed
from manyheads.cost.workload import Workload
from manyheads.errors import SpecError
from manyheads.quoting import shown
from manyheads.spec import check
from manyheads.spec.attention import AttentionSpec, Borrowed, Cross
from manyheads.spec.inventory import Weight, count, weights
from manyheads.spec.kv import Heads, Latent, State
from manyheads.spec.stack import Role, StackSpec
from manyheads.spec.text import layer_text, parse_stack, to_text

__all__ = ["SCHEMA", "default_context", "default_source_tokens", "price"]

SCHEMA = "manyheads.cost/1"
FALLBACK_CONTEXT = 4096

Kind = Literal["self", "cross"]
Step = TypeVar("Step", bound=StepMacs)


def price(
    stack: StackSpec | AttentionSpec,
    *,
    context_tokens: int | Sequence[int] = 0,
    batch: int = 1,
    source_tokens: int = 0,
    weight_dtype: str = "bf16",
    kv_dtype: str = "bf16",
    weight_bytes: int = 0,
    hardware: Machine | None = None,
    memory: int = 0,
    tensor_parallel: int = 1,
    what_if: Sequence[str] = (),
    name: str = "model",
    source: str = "",
    notes: Sequence[str] = (),
) -> Price:
    """The price of a model, or of one layer alone, for `batch` sequences of `context_tokens`; several contexts are compared,
    the last is priced.

    stack            what `manyheads.read` returns; or an AttentionSpec, priced as `manyheads.read` of its text would be
    context_tokens   of each sequence; 0 for the model's own limit, else 4,096
    source_tokens    what an encoder reads, 0 for its own limit or the context
    weight_dtype     format of weights (`manyheads.cost.dtypes`); kv_dtype: of cached keys and values, or "q8_0/f16" for the two
                     apart, keys first (MLA's latents count as keys; running states take the wider)
    weight_bytes     what a file's weights really occupy, 0 to derive it
    hardware         a device of `manyheads.facts.hardware` to time the steps on
    memory           a budget in bytes: what fits in it, and what would
    tensor_parallel  ranks; adds the bytes of one
    what_if          other head layouts of the same model, each priced alike

    Raises SpecError where something asked contradicts the model. Nothing is measured and nothing leaves the machine.
    """
    stack = _model(stack)
    check.size("tensor_parallel", tensor_parallel, most=MOST_RANKS)
    contexts = list(context_tokens) if isinstance(context_tokens, Sequence) else [context_tokens]
    contexts = [tokens or default_context(stack) for tokens in contexts] or [default_context(stack)]
    load = Workload(
        contexts[-1], batch, source_tokens or default_source_tokens(stack, contexts[-1]), weight_dtype, kv_dtype,
        formats(kv_dtype).wider.name, "fp32" if weight_dtype in ("fp32", "float32") else "bf16", weight_bytes,
    )  # fmt: skip
    asked = (contexts, hardware, memory, tensor_parallel)
    own = _priced(stack, load, *asked, model=name, source=source, notes=tuple(notes))
    imagined = replace(load, weight_bytes=0)
    others = (_priced(changed(stack, text), imagined, *asked, model=name, source=source, name=text) for text in what_if)
    return replace(own, what_if=tuple(others)) if what_if else own


def _model(asked: object) -> StackSpec:
    """`asked` as a whole model: one layer is a stack of it."""
    if isinstance(asked, StackSpec):
        return asked
    if not isinstance(asked, AttentionSpec):
        hint = "; manyheads.read makes one of a path, a name or words" if isinstance(asked, str | PathLike) else ""
        raise SpecError(f"a StackSpec or an AttentionSpec has a price, found {shown(asked)}{hint}")
    if isinstance(asked.source, Borrowed):
        raise SpecError(
            f"{to_text(asked)} reads what layer {asked.source.layer} keeps: it has a price within its stack only"
        )
    return parse_stack(to_text(asked))


def default_context(stack: StackSpec) -> int:
    """The context the model is made for, or 4,096 where nothing says."""
    return stack.most_tokens or FALLBACK_CONTEXT


def default_source_tokens(stack: StackSpec, context: int) -> int:
    """What an encoder in front of a decoder reads: all its positions, else as many tokens as the decoder. 0 for none."""
    if stack.decoder is None or not any(block.cross for block, _ in stack.decoder.groups):
        return 0
    rows = stack.encoder.position_rows if stack.encoder else 0
    return rows or min(context, stack.context or context)


def _priced(
    stack: StackSpec, load: Workload, contexts: Sequence[int], hardware: Machine | None, memory: int, ranks: int, *,
    model: str, source: str, notes: tuple[str, ...] = (), name: str | None = None,
) -> Price:  # fmt: skip
    inventory = weights(stack)
    made = Price(
        schema=SCHEMA,
        model=model,
        source=source,
        notes=notes,
        name=name,
        spec=_spec_text(stack),
        layers=stack.layers,
        layer_specs=_layer_specs(stack),
        context=load.context,
        source_tokens=load.source_tokens,
        batch=load.batch,
        weight_dtype=load.weight_dtype,
        kv_dtype=load.kv_dtype,
        key_dtype=load.kv.keys.name,
        value_dtype=load.kv.values.name,
        score_dtype=load.score_dtype,
        parameters=_parameters(stack, load, inventory),
        kv_cache=_kv_cache(stack, load),
        by_context=tuple(_at(stack, replace(load, context=tokens)) for tokens in contexts),
        score_bytes_per_layer=_score_bytes(stack, load),
        prefill=_prefill(stack, load),
        decode=_decode(stack, load, inventory),
        training=_training(stack, load),
        engines=_engines(stack, load),
        tensor_parallel=_rank(stack, load, ranks) if ranks > 1 else None,
        memory=fit(stack, load, memory, ranks) if memory else None,
    )
    return made if hardware is None else replace(made, hardware=_hardware(hardware, made, load))


def _spec_text(stack: StackSpec) -> str:
    own = {block.attention for block, _ in stack.main.groups}
    only = next(iter(own))
    return to_text(only) if len(own) == 1 and only is not None else layer_text(stack)


def _layer_specs(stack: StackSpec) -> tuple[LayerSpec, ...]:
    rows: dict[tuple[Role, Kind, AttentionSpec], int] = {}
    for part in stack.stacks:
        for block, times in part.groups:
            for attention in block.attentions:
                kind: Kind = "cross" if isinstance(attention.source, Cross) else "self"
                key = (part.role, kind, attention)
                rows[key] = rows.get(key, 0) + times
    return tuple(_layer_spec(*key, times) for key, times in rows.items())


def _layer_spec(role: Role, kind: Kind, spec: AttentionSpec, times: int) -> LayerSpec:
    return LayerSpec(
        role=role,
        kind=kind,
        layers=times,
        spec=to_text(spec),
        scheme=spec.scheme,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.kv.num_kv_heads if isinstance(spec.kv, Heads) else None,
        head_dim=spec.head_dim,
        v_head_dim=spec.v_head_dim,
        parameters=count(weights(spec)),
        cache_elements_per_token=layer.cache_elements(spec),
        state_elements=layer.state_elements(spec) + layer.conv_elements(spec),
    )


def _parameters(stack: StackSpec, load: Workload, inventory: tuple[Weight, ...]) -> Parameters:
    total = stored_parameters(inventory)
    table = stack.vocab_size * stack.main.d_model
    return Parameters(
        total=total,
        trainable=count(inventory),
        **parameter_parts(inventory),
        active=Active(**active_parameters(stack)),
        head_kind=stack.head,
        total_untied=total + table if stack.head == "tied" else total,
        bytes=all_weight_bytes(stack, load),
    )


def _kv_cache(stack: StackSpec, load: Workload) -> KVCache:
    held = model.cache_bytes(stack, load)
    return KVCache(
        bytes_per_token=model.cache_slope(stack, load, 0),
        marginal_bytes_per_token=model.cache_slope(stack, load, load.context),
        bytes=held.total,
        growing_bytes=held.growing,
        cross_bytes=held.cross,
        state_bytes=held.state,
        product=_products(stack, load),
        expanded_bytes_per_token=_expanded_slope(stack, load),
    )


def _expanded_slope(stack: StackSpec, load: Workload) -> int | None:
    """What a token takes where MLA's heads are cached expanded, as older ports do; None without MLA."""
    latent = [(a, n) for a, n in model.attentions(stack) if isinstance(a.kv, Latent)]
    if not latent:
        return None
    keys, values = (
        sum(n * formulas.heads_cache_elements(a.num_heads, *sizes) for (a, n), sizes in zip(latent, each, strict=True))
        for each in ([(a.head_dim, 0) for a, _ in latent], [(0, a.v_head_dim) for a, _ in latent])
    )
    return int(load.kv.bytes(keys, values))


def _products(stack: StackSpec, load: Workload) -> tuple[str, ...]:
    """The product behind each share of the cache, one line for each kind of layer."""
    lines = []
    for spec, times in model.attentions(stack):
        each = layer.cache_elements(spec)
        crossing = isinstance(spec.source, Cross)
        tokens = load.source_tokens if crossing else keys_held(spec.mask, load.context)
        if each and tokens:
            label = "memory tokens" if crossing else "tokens"
            lines.append(f"{times} layers x {tokens:,} {label} x {_width_text(spec, load.kv)} B")
        if isinstance(spec.kv, State):
            fixed = layer.state_elements(spec) + layer.conv_elements(spec)
            lines.append(f"{times} layers x {fixed:,} state elements x {load.state.bits_text} B, whatever the length")
    return tuple(f"{load.batch} sequences x {line}" if load.batch > 1 else line for line in lines)


def _width_text(spec: AttentionSpec, kept: KVDType) -> str:
    kv, keys, values = spec.kv, kept.keys.bits_text, kept.values.bits_text
    if isinstance(kv, Latent):
        return f"({kv.rank} latent + {kv.rope_dim} rotary) x {keys}"
    assert isinstance(kv, Heads)
    if keys == values:
        return f"{kv.num_kv_heads} KV heads x ({kv.head_dim} + {kv.v_head_dim}) x {keys}"
    return f"{kv.num_kv_heads} KV heads x ({kv.head_dim} x {keys} + {kv.v_head_dim} x {values})"


def _at(stack: StackSpec, load: Workload) -> AtContext:
    held, moved = model.cache_bytes(stack, load), model.decode_traffic(stack, load)
    return AtContext(
        context=load.context,
        kv_cache_bytes=held.total,
        score_bytes_per_layer=_score_bytes(stack, load),
        decode_bytes_per_step=moved.total,
        cache_share_of_decode=(moved.total - moved.weights) / moved.total if moved.total else 0.0,
    )


def _score_bytes(stack: StackSpec, load: Workload) -> int:
    """The widest scores of any attention of the generating stack: B·H·T·T·b, over a memory of S tokens B·H·T·S·b; one copy."""
    widest = 0
    for spec, _ in model.attentions(stack):
        keys = load.source_tokens if isinstance(spec.source, Cross) else load.context
        widest = max(widest, int(load.score.bytes(layer.score_elements(spec, load.batch, load.context, keys))))
    return widest


def _step(kind: type[Step], macs: model.Macs, **more: Any) -> Step:
    """A step of this kind: what it computes, and the fields that it has beside."""
    return kind(
        macs_dense=macs.dense,
        macs_exact=macs.exact,
        flops_dense=2 * macs.dense,
        flops_exact=2 * macs.exact,
        projection_macs=macs.projections,
        score_and_mix_macs_dense=macs.core_dense,
        score_and_mix_macs_exact=macs.core_exact,
        mlp_macs=macs.mlp,
        head_macs=macs.head,
        **more,
    )


def _prefill(stack: StackSpec, load: Workload) -> Prefill:
    written = model.cache_bytes(stack, load).total
    moved = all_weight_bytes(stack, load) + written
    return _step(Prefill, model.prefill_macs(stack, load), bytes=moved, mla_form="expanded")


def _decode(stack: StackSpec, load: Workload, inventory: tuple[Weight, ...]) -> Decode:
    macs, moved = model.decode_macs(stack, load), model.decode_traffic(stack, load)
    cache = moved.cache_read + moved.cache_write + moved.state
    core = model.decode_core_macs(stack, load)
    slope = model.cache_slope(stack, load, 0)
    attention = load.weight.bytes(count(inventory, "attention"))
    return _step(
        Decode,
        macs,
        bytes_per_token=ceil_div(moved.total, load.batch),
        bytes_per_step=moved.total,
        weight_bytes=moved.weights,
        cache_read_bytes=moved.cache_read,
        cache_write_bytes=moved.cache_write,
        state_bytes=moved.state,
        flops_per_byte=2 * macs.exact / moved.total if moved.total else 0.0,
        core_flops_per_byte=2 * core / cache if cache else 0.0,
        cache_outweighs_attention_weights_at_tokens=attention // slope if slope else None,
        cache_outweighs_read_weights_at_tokens=moved.weights // slope if slope else None,
        mla_form="absorbed",
    )


def _training(stack: StackSpec, load: Workload) -> Training:
    naive, tiled = (kept_activation_bytes(stack, load, tiled=tiled) for tiled in (False, True))
    return _step(Training, model.training_macs(stack, load), activation_bytes_naive=naive, activation_bytes_tiled=tiled)


def _engines(stack: StackSpec, load: Workload) -> tuple[EngineAnswer, ...]:
    if stack.decoder is None:
        return ()
    return engine_answers(
        stack, context=load.context, batch=load.batch, kv_dtype=load.kv_dtype, source_tokens=load.source_tokens
    )


def _hardware(machine: Machine, priced: Price, load: Workload) -> HardwareTimes:
    prefill, decode, training = priced.prefill, priced.decode, priced.training

    def time(flops: int, moved_bytes: int, *, compute_bound_prior: bool = True) -> StepTime:
        return roofline(
            machine, flops=flops, moved_bytes=moved_bytes, kind=load.weight.kind, compute_bound_prior=compute_bound_prior
        )  # fmt: skip

    return HardwareTimes(
        name=machine.name,
        title=getattr(machine, "title", machine.name),
        source=getattr(machine, "source", ""),
        provenance=getattr(machine, "provenance", ""),
        bandwidth_bytes_per_second=machine.bandwidth_bytes_per_second,
        peak_flops_per_second=dict(machine.peak_flops_per_second),  # type: ignore[call-overload]
        memory_bytes=getattr(machine, "memory_bytes", None),
        prefill=time(prefill.flops_exact, prefill.bytes),
        training=time(training.flops_exact, 3 * priced.parameters.bytes),
        decode=time(decode.flops_exact, decode.bytes_per_step, compute_bound_prior=False) if decode.bytes_per_step else None,
    )  # fmt: skip


def _rank(stack: StackSpec, load: Workload, ranks: int) -> Rank:
    rank = rank_of(stack, ranks)
    derived = replace(load, weight_bytes=0)
    kv_heads = {a.kv.num_kv_heads for a, _ in model.attentions(stack) if isinstance(a.kv, Heads)}
    return Rank(
        ranks=ranks,
        weight_bytes_per_rank=all_weight_bytes(rank, derived),
        kv_cache_bytes_per_rank=model.cache_bytes(rank, derived).total,
        kv_bytes_per_token_per_rank=model.cache_slope(rank, derived, 0),
        kv_heads_replicated=any(ranks > heads for heads in kv_heads),
        latents_on_every_rank=any(isinstance(a.kv, Latent) for a, _ in model.attentions(stack)),
    )
