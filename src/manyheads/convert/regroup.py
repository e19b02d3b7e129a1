"""A model with another number of KV heads: MHA or GQA to fewer of them, or up again, exactly.

    made = regroup("path/to/model", 1)
    write_store("smaller", made.weights, config=..., stack=made.stack)

Layer by layer: moments of the layer's own queries, keys and values on the original model's activations, the grouping that
loses least, shared keys, then shared values under the attention that the new keys give.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from manyheads.checkpoints.pruned import places
from manyheads.checkpoints.reading import Checkpoint, Named
from manyheads.convert import baselines
from manyheads.convert.calibration_text import Calibration, calibration_windows
from manyheads.convert.grouping import Grouping, best_grouping, contiguous
from manyheads.convert.head_weights import HeadWeights, Units, check_heads, may_permute, units_of
from manyheads.convert.key_merge import KeyMerge, planes_of
from manyheads.convert.keys import KeyMoments, merge_keys
from manyheads.convert.layer_run import Layer, LayerRun
from manyheads.convert.regrouped_weights import RegroupedWeights, prefix_of, regrouped_stack
from manyheads.convert.small_matrices import one_thread
from manyheads.convert.source import Source, open_source
from manyheads.convert.values import ValueMerge, ValueMoments, fit_values, merged_attention, start_values
from manyheads.errors import ConversionError
from manyheads.models.door.door import Call
from manyheads.models.load.model import Loaded
from manyheads.models.load.text import Reading
from manyheads.quoting import shown
from manyheads.spec.attention import AttentionSpec
from manyheads.spec.kv import Heads
from manyheads.spec.stack import StackSpec

__all__ = ["METHODS", "LayerFigures", "Method", "Regrouped", "regroup"]

Method = Literal["closed", "layerfit", "mean", "first", "procrustes"]
METHODS: tuple[Method, ...] = get_args(Method)
_WITHOUT_TEXT = ("mean", "first")

# Above this the moments of all heads' old values are not kept, and C stays where it starts.
_MOMENT_BYTES = 1 << 30

Say = Callable[[str], None]


@dataclass(frozen=True)
class LayerFigures:
    """What became of one attention.

    groups        the query heads, by their old numbers, of each new KV head; in the new model they stand in this order
    keys_left_out share of the weighted energy of its keys that the shared ones lack; `values_left_out`: of its output's
                  energy, on the calibration text. NaN where the method does not measure it
    seconds       how long it took
    """

    role: str
    layer: int
    groups: tuple[tuple[int, ...], ...]
    keys_left_out: float
    values_left_out: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Regrouped:
    """A regrouped model: its weights by canonical name, made on demand, and what it is.

    before       what it was
    calibration  the text it was fitted on, None for methods that read none
    """

    weights: Mapping[str, Tensor]
    stack: StackSpec
    before: StackSpec
    method: Method
    layers: tuple[LayerFigures, ...]
    calibration: Calibration | None
    seconds: float
    notes: tuple[str, ...] = ()


def regroup(
    source: Named | Checkpoint | Loaded | nn.Module | Source,
    kv_heads: int | Mapping[int, int],
    *,
    method: Method = "closed",
    texts: Sequence[Reading] | None = None,
    windows: int = 16,
    window: int = 512,
    calibration: Calibration | None = None,
    value_rounds: int = 3,
    layer_by_layer: bool = False,
    fit: Mapping[str, Any] | None = None,
    seed: int = 0,
    say: Say = lambda _: None,
) -> Regrouped:
    """`source` with `kv_heads` KV heads in every attention, or by layer.

    source          a folder, file or hub id, a model that was loaded, or a transformers model in memory
    method          "closed", "layerfit" (then gradients inside each layer); "mean", "first", "procrustes" to compare with.
                    More KV heads than there are: exact repetition, whatever the method
    texts           to calibrate on; None: two kinds (`calibration_texts`)
    windows, window   how many, and of how many tokens: the context that the model will be used at
    calibration     windows of tokens instead, where there is no tokenizer
    value_rounds    rounds of fitting shared values and W_O in turn
    layer_by_layer  of a folder or file: hold one layer's weights at a time
    fit             settings of the layer fit (`layer_fit.FitSettings`)

    Every layer is fitted on what the original model gives it. Raises ConversionError, one line: for counts that cannot be,
    attention without KV heads, and for "closed" and "procrustes" what their maps cannot pass through (QK norm, a gate on
    heads' outputs).
    """
    if method not in METHODS:
        raise ConversionError(f"method {shown(method)} is not one of {', '.join(METHODS)}")
    began = time.perf_counter()
    known = source if isinstance(source, Source) else open_source(source, layer_by_layer=layer_by_layer)
    wanted = _wanted(known.stack, kv_heads)
    stack = regrouped_stack(known.stack, wanted)
    weights = RegroupedWeights(known.weights)
    made = _Making(known, wanted, method, weights, value_rounds, seed, say, dict(fit or {}))
    if method in _WITHOUT_TEXT or all(_up_or_same(known.stack, wanted).values()):
        figures = made.without_text()
        return Regrouped(weights, stack, known.stack, method, figures, None, time.perf_counter() - began)
    _check_method(known.stack, method, wanted)
    encoder = known.stack.decoder is None
    read = calibration or calibration_windows(
        known.tokenizer, texts, windows=windows, length=_length(known.stack, window), special_tokens=encoder
    )
    figures = made.with_text(read)
    return Regrouped(weights, stack, known.stack, method, figures, read, time.perf_counter() - began, read.notes)


def _length(stack: StackSpec, window: int) -> int:
    return min(window, stack.most_tokens) if stack.most_tokens else window


def _wanted(stack: StackSpec, kv_heads: int | Mapping[int, int]) -> dict[tuple[str, int], int]:
    """The new number of KV heads of each attention that has them."""
    found = {}
    for role, layer, spec in places(stack):
        count = kv_heads.get(layer) if isinstance(kv_heads, Mapping) else kv_heads
        if count is not None:
            check_heads(spec, count)
            found[role, layer] = count
    if isinstance(kv_heads, Mapping) and (strange := set(kv_heads) - {layer for _, layer in found}):
        raise ConversionError(f"layer {min(strange)} was asked for; the model has layers 0 to {stack.layers - 1}")
    return found


def _up_or_same(stack: StackSpec, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], bool]:
    return {
        (role, layer): wanted[role, layer] >= spec.kv.num_kv_heads
        for role, layer, spec in places(stack) if (role, layer) in wanted and isinstance(spec.kv, Heads)
    }  # fmt: skip


def _check_method(stack: StackSpec, method: Method, wanted: Mapping[tuple[str, int], int]) -> None:
    for role, layer, spec in places(stack):
        if (role, layer) not in wanted or method == "layerfit":
            continue
        where = f"layer {layer}"
        if spec.qk_norm is not None:
            raise ConversionError(
                f'{where}: method "{method}" moves a map from keys to queries, which its QK norm does not let pass (its weights '
                'differ within a plane); valid: "layerfit", "mean", "first"'
            )
        if spec.output_gate:
            raise ConversionError(
                f'{where}: method "{method}" moves a map from values to the output projection, and a gate stands between them; '
                'valid: "layerfit", "mean", "first"'
            )


@dataclass(frozen=True, eq=False)
class _Making:
    """One regrouping, attention by attention."""

    source: Source
    wanted: Mapping[tuple[str, int], int]
    method: Method
    weights: RegroupedWeights
    value_rounds: int
    seed: int
    say: Say
    fit: Mapping[str, Any]

    def without_text(self) -> tuple[LayerFigures, ...]:
        """Of methods that read no text."""
        return tuple(
            self._plain(role, layer, spec)
            for role, layer, spec in places(self.source.stack) if (role, layer) in self.wanted
        )  # fmt: skip

    def with_text(self, read: Calibration) -> tuple[LayerFigures, ...]:
        """Of methods that are fitted on text, in one walk through the layers."""
        role = self.source.stack.main.role
        specs = {layer: spec for name, layer, spec in places(self.source.stack) if name == role}
        figures = []
        with LayerRun(self.source, read.windows) as run:
            for layer in run.layers:
                spec = specs.get(layer.index)
                if spec is None or (role, layer.index) not in self.wanted:
                    run.advance(layer)
                    continue
                if not layer.attention:
                    raise ConversionError(f"layer {layer.index}: its attention does not pass through the door")
                figures.append(self._fitted(run, layer, role, spec))
                self.say(f"layer {layer.index + 1} of {len(run.layers)}: {figures[-1].seconds:.1f} s")
                if all(number <= layer.index for _, number in self.wanted):
                    break
        return tuple(figures)

    def _plain(self, role: str, layer: int, spec: AttentionSpec) -> LayerFigures:
        began, count = time.perf_counter(), self.wanted[role, layer]
        before = self._before(role, layer)
        weights, kv = HeadWeights.of(spec, before), check_heads(spec, count)
        if count >= kv.num_kv_heads:
            made, groups = baselines.repeat(weights, count), _in_order(spec.num_heads, count)
        else:
            units = units_of(spec, count)
            made = (baselines.mean if self.method == "mean" else baselines.first)(weights, units)
            groups = _in_order(spec.num_heads, count)
        self.weights.add(prefix_of(role, layer), before, made)
        nothing = 0.0 if count >= kv.num_kv_heads else float("nan")
        return LayerFigures(role, layer, groups, nothing, nothing, time.perf_counter() - began)

    def _before(self, role: str, layer: int) -> dict[str, Tensor]:
        which = "cross" if role == "cross" else "self"
        return self.source.attention("decoder" if role == "cross" else role, layer, which)

    def _fitted(self, run: LayerRun, layer: Layer, role: str, spec: AttentionSpec) -> LayerFigures:
        began, count = time.perf_counter(), self.wanted[role, layer.index]
        if count >= check_heads(spec, count).num_kv_heads:
            run.advance(layer)
            return self._plain(role, layer.index, spec)
        before = self._before(role, layer.index)
        weights, units = HeadWeights.of(spec, before), units_of(spec, count)
        made = self._made(run, layer, weights, units)
        run.advance(layer)
        self.weights.add(prefix_of(role, layer.index), before, made.weights)
        return LayerFigures(role, layer.index, made.groups, made.keys_left_out, made.values_left_out, time.perf_counter() - began)

    def _made(self, run: LayerRun, layer: Layer, weights: HeadWeights, units: Units) -> _Made:
        if self.method == "procrustes":
            return _aligned(run, layer, weights, units)
        closed = None if weights.spec.qk_norm is not None or weights.spec.output_gate else _closed(
            run, layer, weights, units, self.value_rounds, self.seed
        )  # fmt: skip
        if self.method == "closed":
            assert closed is not None
            return closed
        raise ConversionError("layerfit is not built yet")


@dataclass(frozen=True, eq=False)
class _Made:
    """The new weights of one attention, its query heads in their new order, and what its figures say."""

    weights: HeadWeights
    groups: tuple[tuple[int, ...], ...]
    keys_left_out: float
    values_left_out: float


def _in_order(heads: int, groups: int) -> tuple[tuple[int, ...], ...]:
    each = heads // groups
    return tuple(tuple(range(at, at + each)) for at in range(0, heads, each))


def _put_in(weights: HeadWeights, keys: KeyMerge, values: ValueMerge) -> _Made:
    """The maps moved into the weights, and query heads brought to their groups."""
    made = weights.changed(len(keys.groups), **keys.moved_into(weights), **values.moved_into(weights))
    order = [head for group in keys.groups for head in group]
    return _Made(made.permuted(order), keys.groups, keys.left_out, values.left_out)


def _aligned(run: LayerRun, layer: Layer, weights: HeadWeights, units: Units) -> _Made:
    moments = baselines.AlignmentMoments.empty(
        planes_of(weights.spec.positions, weights["k"].shape[1]), weights["k"].shape[0], weights["v"].shape[1]
    )
    run.attention(layer, moments.add)
    with one_thread():
        return _put_in(weights, *baselines.procrustes(weights, moments, units))


def _closed(run: LayerRun, layer: Layer, weights: HeadWeights, units: Units, rounds: int, seed: int) -> _Made:
    """Two passes through the layer's attention: for the keys, and for the values under what the keys became."""
    keys = KeyMoments.empty(planes_of(weights.spec.positions, weights["k"].shape[1]), weights["q"].shape[0], weights["k"].shape[0])
    looks = may_permute(weights.spec) and units.groups > 1 and units.each > 1
    spread = _Spread(weights["v"].shape[0] * weights["v"].shape[1])

    def look(call: Call, _: Tensor) -> None:
        _check_plain(call, weights)
        attention = call.weights()
        keys.add(call, attention)
        if looks:
            spread.add(call, attention)

    run.attention(layer, look)
    with one_thread():
        grouping = best_grouping(weights, keys, spread.sums, units, seed=seed) if looks else contiguous(units)
        merge = merge_keys(keys, units, grouping.groups)
    values = _closed_values(run, layer, weights, units, grouping, merge, rounds)
    return _put_in(weights, merge, values)


def _check_plain(call: Call, weights: HeadWeights) -> None:
    if call.projected:
        raise ConversionError(
            f"{call.path}: what its heads give is changed before it is projected, so values cannot move through; valid: "
            '"layerfit", "mean", "first"'
        )
    if call.k.shape[1] != weights["k"].shape[0]:
        raise ConversionError(
            f"{call.path}: its keys come as {call.k.shape[1]} heads, where its weights have {weights['k'].shape[0]}"
        )


@dataclass(eq=False)
class _Spread:
    """(k v, k v): covariance of what heads gather of all old values, summed over heads; of large ones, of the values themselves,
    each as often as it is looked at."""

    width: int

    def __post_init__(self) -> None:
        self.sums = torch.zeros(self.width, self.width, dtype=torch.float64)

    def add(self, call: Call, attention: Tensor) -> None:
        """One call."""
        for v, a in zip(call.v.to(torch.float64), attention.to(torch.float64), strict=True):
            rows = v.transpose(0, 1).flatten(1)  # (s, k v)
            if a.shape[0] * self.width > _WIDE:
                self.sums += (a.sum((0, 1)).unsqueeze(1) * rows).T @ rows
                continue
            gathered = (a @ rows).flatten(0, 1)
            self.sums += gathered.T @ gathered


_WIDE = 16_384


def _closed_values(
    run: LayerRun, layer: Layer, weights: HeadWeights, units: Units, grouping: Grouping, merge: KeyMerge, rounds: int
) -> ValueMerge:
    size, groups = weights["v"].shape[1], grouping.groups
    olds = [units.old_of(group) for group in groups]
    of_head = merge.of_head()
    widths = [len(olds[group]) * size for group in of_head]
    d_model = weights["o"].shape[0]
    output = weights["o"].permute(1, 2, 0).flatten(0, 1)  # (h v, m)
    whole = (8 * sum(widths) ** 2) <= _MOMENT_BYTES
    grams = [torch.zeros(len(old) * size, len(old) * size, dtype=torch.float64) for old in olds]
    moments = ValueMoments.empty(sum(widths) if whole else len(of_head) * size, d_model)

    def gathered(call: Call, at: int) -> list[Tensor]:
        """u_h (t, g v) of each head of one sequence."""
        attention = merged_attention(call, merge)[at].to(torch.float64)
        rows = [call.v[at, old].to(torch.float64).transpose(0, 1).flatten(1) for old in olds]
        return [attention[head] @ rows[group] for head, group in enumerate(of_head)]

    def before(outputs: Tensor, at: int) -> Tensor:
        return outputs[at].to(torch.float64).transpose(0, 1).flatten(1) @ output

    def look(call: Call, outputs: Tensor) -> None:
        for at in range(call.q.shape[0]):
            heads = gathered(call, at)
            if whole:
                moments.add(torch.cat(heads, 1), before(outputs, at))
                continue
            for head, group in zip(heads, of_head, strict=True):
                grams[group] += head.T @ head

    run.attention(layer, look)
    if whole:
        ends = torch.tensor(widths).cumsum(0).tolist()
        for end, width, group in zip(ends, widths, of_head, strict=True):
            grams[group] += moments.gram[end - width : end, end - width : end]
    with one_thread():
        mixings, start, _ = start_values(weights, grams, units, groups)
    if not whole:

        def shared(call: Call, outputs: Tensor) -> None:
            for at in range(call.q.shape[0]):
                heads = [head @ mixings[group].T for head, group in zip(gathered(call, at), of_head, strict=True)]
                moments.add(torch.cat(heads, 1), before(outputs, at))

        run.attention(layer, shared)
    with one_thread():
        return fit_values(weights, moments, units, groups, mixings, start, rounds=rounds, reduced=not whole)
