"""A model with another number of KV heads: MHA or GQA to fewer of them, or up again, exactly.

    from manyheads.convert.regroup import regroup

    made = regroup("path/to/model", 1, method="mean")
    made.stack, made.weights                # what it is now; `models.store.write.write_store` takes them

Layer by layer: moments of the layer's own queries, keys and values on the original model's activations, the grouping that
loses least, shared keys, then shared values under the attention that the new keys give.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from torch import Tensor, nn

from manyheads.checkpoints.pruned import places, prefix_of
from manyheads.checkpoints.reading import Checkpoint, Named
from manyheads.convert import baselines
from manyheads.convert.calibration_text import Calibration, calibration_windows
from manyheads.convert.closed_form import Made, align, close, close_values
from manyheads.convert.head_weights import HeadWeights, Units, check_heads, units_of
from manyheads.convert.layer_fit import FitSettings, LayerFit, plain_start
from manyheads.convert.layer_run import Layer, LayerRun
from manyheads.convert.regrouped_weights import RegroupedWeights, regrouped_stack
from manyheads.convert.source import Source, open_source
from manyheads.errors import ConversionError
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
    value_rounds: int = 2,
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
        if run.done == layer.index:
            run.advance(layer)
        self.weights.add(prefix_of(role, layer.index), before, made.weights)
        return LayerFigures(role, layer.index, made.groups, made.keys, made.values, time.perf_counter() - began)

    def _made(self, run: LayerRun, layer: Layer, weights: HeadWeights, units: Units) -> Made:
        if self.method == "procrustes":
            return align(run, layer, weights, units)
        if self.method == "closed":
            return close(run, layer, weights, units, rounds=self.value_rounds, seed=self.seed, last=True)
        return self._layer_fit(run, layer, weights, units)

    def _layer_fit(self, run: LayerRun, layer: Layer, weights: HeadWeights, units: Units) -> Made:
        settings = FitSettings.of(self.fit)
        moves = not (weights.spec.qk_norm is not None or weights.spec.output_gate)
        if moves:
            start = close(run, layer, weights, units, rounds=self.value_rounds, seed=self.seed, last=False)
            fit = LayerFit(run, layer, weights, start.order, units.groups, settings, self.seed)
        else:
            order = list(range(weights.spec.num_heads))
            fit = LayerFit(run, layer, weights, order, units.groups, settings, self.seed)
            groups = units.contiguous()
            heads = tuple(tuple(units.heads_of(group)) for group in groups)
            start = Made(plain_start(fit, units), heads, groups, float("nan"), float("nan"))
        values = None if weights.spec.output_gate else partial(
            close_values, weights, units, start.units, rounds=self.value_rounds
        )  # fmt: skip
        made, left = fit.fitted(start.weights, values)
        return Made(made, start.groups, start.units, start.keys, left)


def _in_order(heads: int, groups: int) -> tuple[tuple[int, ...], ...]:
    each = heads // groups
    return tuple(tuple(range(at, at + each)) for at in range(0, heads, each))
