"""The closed form of one layer: which heads share, their key, and their value under the attention that the key gives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count

import torch
from torch import Tensor

from manyheads.convert import baselines
from manyheads.convert.grouping import Grouping, best_grouping, contiguous
from manyheads.convert.head_weights import HeadWeights, Units, may_permute
from manyheads.convert.key_merge import KeyMerge, planes_of
from manyheads.convert.keys import KeyMoments, merge_keys
from manyheads.convert.layer_fit import Look, Sweep
from manyheads.convert.layer_run import Layer, LayerRun
from manyheads.convert.small_matrices import one_thread
from manyheads.convert.values import ValueMerge, ValueMoments, fit_values, merged_attention, start_values, token_weights
from manyheads.errors import ConversionError
from manyheads.models.door.door import Call

__all__ = ["Made", "align", "close", "close_values"]

# Above this the moments of all heads' old values are not kept, and C stays where it starts.
_MOMENT_BYTES = 1 << 30
# Above this width what heads gather is not told apart for the grouping.
_WIDE = 16_384


@dataclass(frozen=True, eq=False)
class Made:
    """The new weights of one attention, and what its figures say.

    groups  the query heads of each new KV head, by their old numbers; in `weights` they stand in this order
    units   groups again, as units;  keys, values: what was left out, NaN where it was not measured
    """

    weights: HeadWeights
    groups: tuple[tuple[int, ...], ...]
    units: tuple[tuple[int, ...], ...]
    keys: float
    values: float

    @property
    def order(self) -> list[int]:
        """The old number of each new query head."""
        return [head for group in self.groups for head in group]


def _put_in(weights: HeadWeights, grouping: Grouping, keys: KeyMerge, values: ValueMerge) -> Made:
    """The maps moved into the weights, and query heads brought to their groups."""
    made = weights.changed(len(keys.groups), **keys.moved_into(weights), **values.moved_into(weights))
    order = [head for group in keys.groups for head in group]
    return Made(made.permuted(order), keys.groups, grouping.groups, keys.left_out, values.left_out)


def align(run: LayerRun, layer: Layer, weights: HeadWeights, units: Units) -> Made:
    """The mean of aligned heads, from one pass through the layer's attention."""
    moments = baselines.AlignmentMoments.empty(
        planes_of(weights.spec.positions, weights["k"].shape[1]), weights["k"].shape[0], weights["v"].shape[1]
    )
    run.attention(layer, moments.add)
    with one_thread():
        return _put_in(weights, contiguous(units), *baselines.procrustes(weights, moments, units))


def close(
    run: LayerRun, layer: Layer, weights: HeadWeights, units: Units, *, rounds: int, seed: int, last: bool
) -> Made:
    """Two passes through the layer's attention: for the keys, and for the values under what the keys became.

    last  no other pass through the layer will come: its second one goes on to the next layer
    """
    shape = planes_of(weights.spec.positions, weights["k"].shape[1])
    keys = KeyMoments.empty(shape, weights["q"].shape[0], weights["k"].shape[0])
    looks = may_permute(weights.spec) and units.groups > 1 and units.each > 1
    spread = _Spread(weights["v"].shape[0] * weights["v"].shape[1] if looks else 0)

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
    sweep = _sweep(run, layer, weights, merge, last=last)
    values = close_values(weights, units, grouping.groups, sweep, rounds=rounds)
    if last and run.done == layer.index:
        run.advance(layer)
    return _put_in(weights, grouping, merge, values)


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
    """(k v, k v): covariance of what heads gather of all old values, summed over heads; of large ones, of the values
    themselves, each as often as it is looked at."""

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


def _sweep(run: LayerRun, layer: Layer, weights: HeadWeights, merge: KeyMerge, *, last: bool) -> Sweep:
    """Passes through the layer's attention that show the attention of merged keys; the first goes on where it is the last."""
    output = weights["o"].permute(1, 2, 0).flatten(0, 1)  # (h v, m)

    def swept(look: Look, *, final: bool = True) -> None:
        def each(call: Call, outputs: Tensor) -> None:
            attention = merged_attention(call, merge)
            for at in range(call.q.shape[0]):
                y = outputs[at].to(torch.float64).transpose(0, 1).flatten(1) @ output
                look(attention[at].to(torch.float64), call.v[at].to(torch.float64), y)

        partial(run.advance if last and final else run.attention, layer)(each)

    return swept


def close_values(
    weights: HeadWeights, units: Units, groups: tuple[tuple[int, ...], ...], sweep: Sweep, *, rounds: int
) -> ValueMerge:
    """Shared values under the attention that `sweep` shows; of many large heads, without rounds, from one more sweep."""
    size, olds = weights["v"].shape[1], [units.old_of(group) for group in groups]
    found = {head: group for group, members in enumerate(groups) for head in units.heads_of(members)}
    of_head = [found[head] for head in range(len(found))]
    widths = [len(olds[group]) * size for group in of_head]
    whole = 8 * sum(widths) ** 2 <= _MOMENT_BYTES
    grams = [torch.zeros(len(old) * size, len(old) * size, dtype=torch.float64) for old in olds]
    width = sum(widths) if whole else len(of_head) * size
    halves = [
        ValueMoments.empty(width, weights["o"].shape[0]) for _ in range(2)
    ]  # windows of each kind of text in both
    shown = count()

    def gathered(attention: Tensor, values: Tensor) -> list[Tensor]:
        """u_h (t, g v) of each head."""
        rows = [values[old].transpose(0, 1).flatten(1) for old in olds]
        return [attention[head] @ rows[group] for head, group in enumerate(of_head)]

    def look(attention: Tensor, values: Tensor, y: Tensor) -> None:
        heads = gathered(attention, values)
        if whole:
            halves[next(shown) // 2 % 2].add(torch.cat(heads, 1), y, token_weights(y))
            return
        for head, group in zip(heads, of_head, strict=True):
            grams[group] += head.T @ head

    sweep(look, final=whole)
    if whole:
        ends = torch.tensor(widths).cumsum(0).tolist()
        for end, width, group in zip(ends, widths, of_head, strict=True):
            grams[group] += sum(each.gram[end - width : end, end - width : end] for each in halves)
    mixings, start, _ = start_values(weights, grams, units, groups)
    if not whole:

        def shared(attention: Tensor, values: Tensor, y: Tensor) -> None:
            heads = [u @ mixings[group].T for u, group in zip(gathered(attention, values), of_head, strict=True)]
            halves[next(shown) // 2 % 2].add(torch.cat(heads, 1), y, token_weights(y))

        sweep(shared, final=True)
    return fit_values(weights, halves, units, groups, mixings, start, rounds=rounds, reduced=not whole)
