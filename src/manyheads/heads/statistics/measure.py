"""Where every head of a model looks: one streaming pass over texts, with the control that a head without preferences gives.

    found = head_statistics(model, [ids], key_sets={"commas": torch.tensor([11])})
    found.mass["first"][17, 3]            # what head 3 of layer 17 gives to the first token
    found.chance.mass["first"][17, 0]     # what it would give if all keys were alike to it

All figures are means over queries, of probabilities before dropout. No score matrix is held: memory depends neither on the
length of the texts nor on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from manyheads.errors import BackendError, ManyheadsError
from manyheads.heads.attention_modules import AttentionModule, ModuleIndex, is_cross
from manyheads.heads.batches import BatchLike, Tokens, are_separate, each_batch, prepare, sides
from manyheads.heads.statistics.scan_backend import select_scan
from manyheads.heads.statistics.streaming import Sums, stream
from manyheads.models.door.attentions import find_attentions
from manyheads.models.door.door import Call, open_door
from manyheads.ops.precision import in_full
from manyheads.ops.predicates import PerHead, Visible
from manyheads.ops.score_rows import SequenceView, lane_padded
from manyheads.quoting import shown

__all__ = ["MASSES", "HeadStatistics", "KeySet", "Recorder", "head_statistics"]

MASSES = ("self", "previous", "next", "duplicate", "induction", "first")
"""Masses that are always there; NaN where they mean nothing (the first five in cross-attention, where queries and keys are
different texts; duplicates and induction where a model reads no tokens)."""

_OF_ONE_TEXT = MASSES[:5]
_OF_TOKENS = ("duplicate", "induction")
_KEPT_MASKS = 4

# Ids of tokens, or a function of the ids (b, s) that says which keys are in the set, (b, s) booleans.
KeySet: TypeAlias = Tensor | Sequence[int] | Callable[[Tensor], Tensor]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeadStatistics:
    """Arrays (layers, heads), NaN where a layer has fewer heads or a figure means nothing; layers as in `modules`.

    modules      the attention modules: path, stack ("" in a model of one stack), layer
    queries     (layers,) queries counted: real tokens that see something
    mass        by name: mean over the queries that see such a key of what they give to such keys together.
                "self", "previous", "next": distance 0, 1, -1. "first": the first real token of the text, of each that
                is packed into a row. "duplicate": other keys of the query's own token. "induction": keys up to the query
                whose token before is the query's token. And the key sets
    eligible    by name: those queries
    offsets     (layers, heads, 2·max_offset + 1): mean probability at distance i - j = -max_offset .. max_offset; the two at the ends are
                "so far or farther"; see `offset`
    top_offsets the same of the strongest key (the first of equals): the share of queries where it stands there
    entropy     -sum of p ln p over keys, nats
    distance    mean |i - j| of what is attended
    logit_std   standard deviation of a query's logits over the keys that it sees, after scale, cap and bias
    sink_mass   what is given to no key, but to the sink (models with sink logits)
    output_norm Euclidean norm of the head's output, before the output projection
    chance      the same figures, (layers, 1 or heads), of a head that gives all keys that it sees the same; top_offsets,
                logit_std and output_norm are NaN there
    uncalled    attention modules that did not run
    padded      (layers,) positions of images or sound that hold nothing, which the model put in itself to fill up windows or
                tiles: they are no queries here; as keys they get what the model gives them
    """

    modules: tuple[AttentionModule, ...]
    max_offset: int
    queries: NDArray[np.int64]
    mass: Mapping[str, Floats]
    eligible: Mapping[str, Floats]
    offsets: Floats
    top_offsets: Floats
    entropy: Floats
    distance: Floats
    logit_std: Floats
    sink_mass: Floats
    output_norm: Floats
    chance: HeadStatistics | None
    uncalled: tuple[str, ...] = ()
    padded: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __repr__(self) -> str:
        rows, columns = self.entropy.shape
        said = f" in {', '.join(self.stacks)}" if any(self.stacks) else ""
        padded = int(self.padded.sum())
        without = f" (without {padded:,} positions of padding)" if padded else ""
        return (
            f"HeadStatistics({rows} layers of up to {columns} heads{said}, {int(self.queries.sum()):,} queries{without}; masses "
            f"{', '.join(self.mass)})"
        )

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks, in order."""
        return tuple(dict.fromkeys(module.stack for module in self.modules))

    @property
    def layers(self) -> tuple[int, ...]:
        """The layer of each row."""
        return tuple(module.layer for module in self.modules)

    def offset(self, distance: int) -> Floats:
        """(layers, heads): mean probability at this distance i - j, which is positive for keys before the query."""
        if abs(distance) >= self.max_offset:
            raise ManyheadsError(
                f"distance {distance} was not recorded: max_offset is {self.max_offset}; valid: {1 - self.max_offset} to {self.max_offset - 1}"
            )
        return self.offsets[..., self.max_offset + distance]

    def of(self, stack: str) -> HeadStatistics:
        """One stack of several. Raises ManyheadsError, naming those there are."""
        rows = [row for row, module in enumerate(self.modules) if module.stack == stack]
        if not rows:
            raise ManyheadsError(f"there is no stack {shown(stack)}; valid: {', '.join(map(repr, self.stacks))}")
        arrays: dict[str, Any] = {n: getattr(self, n)[rows] for n in (*_PLAIN, "queries", "offsets", "top_offsets")}
        arrays["padded"] = self.padded[rows] if len(self.padded) else self.padded
        named: dict[str, Any] = {n: {key: x[rows] for key, x in getattr(self, n).items()} for n in ("mass", "eligible")}
        chance = None if self.chance is None else self.chance.of(stack)
        return replace(self, modules=tuple(self.modules[row] for row in rows), chance=chance, **arrays, **named)


_PLAIN = ("entropy", "distance", "logit_std", "sink_mass", "output_norm")


def head_statistics(
    model: nn.Module,
    batches: Iterable[BatchLike] | BatchLike,
    *,
    key_sets: Mapping[str, KeySet] | None = None,
    max_offset: int = 64,
    implementation: str = "auto",
    mode: Literal["eval", "refuse"] = "eval",
    say: Callable[[int], None] = lambda _: None,
) -> HeadStatistics:
    """The statistics of every head of `model`, a model of transformers, over `batches`, which are taken one by one.

    batches         token ids (b, t), or mappings of what the model is called with; padding on either side, by attention_mask
    key_sets        sets of keys whose mass is asked for, by name: token ids, or a function of ids (b, s)
    max_offset      distances below it are recorded one by one
    implementation  of the pass: "torch", "compiled" (CPU), or "auto", the quicker one that can
    mode            a model in training mode is put into evaluation for the while ("eval") or refused ("refuse"): its dropout
                    would change what later layers see
    say             told the number of batches done, after each

    Raises ManyheadsError for a text of less than two tokens or no text, for a key set that is named as one of `MASSES`,
    and BackendError for a model whose attention does not pass through the door.
    """
    if mode == "refuse" and any(module.training for module in model.modules()):
        raise BackendError(
            'the model is in training mode, and its dropout would be in the figures; model.eval(), or mode="eval"'
        )
    recorder = Recorder(model, key_sets=key_sets, max_offset=max_offset, implementation=implementation)
    done = 0
    with open_door(model, observers=[recorder], mode="eval"), torch.no_grad():
        for batch in each_batch(batches):
            given = prepare(model, batch, all_logits=False)
            recorder.read(given)
            model(**given)
            done += 1
            say(done)
    if not done:
        raise ManyheadsError("there is no text to look at: at least one batch of two tokens is needed")
    return recorder.result()


class Recorder:
    """An observer of the door that gathers the statistics of whatever runs while it is there.

        recorder = Recorder(model)
        with open_door(model, observers=[recorder]):
            recorder.read(batch)      # before each forward: the ids and masks that go into it
            model(**batch)
        recorder.result()

    For use inside a program's own forward, with gradient checkpointing too, whose second forward the door does not show.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        key_sets: Mapping[str, KeySet] | None = None,
        max_offset: int = 64,
        implementation: str = "auto",
    ) -> None:
        self._key_sets = dict(key_sets or {})
        taken = [name for name in self._key_sets if name in MASSES]
        if taken:
            raise ManyheadsError(f"a key set cannot be called {shown(taken[0])}: that is one of {', '.join(MASSES)}")
        if max_offset < 2:
            raise ManyheadsError(
                f"max_offset {max_offset}: distances -1, 0 and 1 are always recorded, so at least 2 is needed"
            )
        self._max_offset, self._implementation = max_offset, implementation
        self._modules = ModuleIndex(find_attentions(model))
        self._sums: dict[str, Sums] = {}
        self._chance: dict[str, Sums] = {}
        self._without: dict[str, set[str]] = {}
        self._given: Mapping[str, Any] = {}
        self._level: list[tuple[Any, list[Tensor | None], tuple[Any, ...], Sums]] = []
        self._padded: dict[str, int] = {}

    @property
    def _masses(self) -> tuple[str, ...]:
        return (*MASSES, *self._key_sets)

    def read(self, given: Mapping[str, Any]) -> None:
        """What the next forward is called with: ids and attention masks are taken from it."""
        self._given, self._level = given, []

    def __call__(self, call: Call, out: Tensor) -> None:
        """Sees one call of attention."""
        module = self._modules.of(call)
        with torch.no_grad(), in_full(out):
            views, without = self._views(call, module.stack)
            self._without.setdefault(call.path, set()).update(without)
            sums = self._sums.setdefault(call.path, Sums(module.heads, self._max_offset, self._masses))
            stream(call, views, sums, scan_tile=select_scan(self._implementation, call))
            level = self._uniform(call, views, module.stack)
            self._chance.setdefault(call.path, Sums(level.heads, self._max_offset, self._masses)).add_all(level)
            sums.add("norm", _norms(out, views))

    def _views(self, call: Call, stack: str) -> tuple[list[SequenceView], set[str]]:
        b, t, s = call.q.shape[0], call.q.shape[2], call.k.shape[2]
        asked, read = sides(self._given, stack)
        asked, read = _fitting(asked, b, t), _fitting(read, b, s)
        if read is not None and read.begins is not None and not are_separate(call, read.begins):
            read = replace(read, begins=None)
        crossed = is_cross(stack)
        without = {*(() if not crossed else _OF_ONE_TEXT)}
        if read is None:
            without.update((*_OF_TOKENS, *self._key_sets))
        real = None if asked is None else asked.real
        if asked is None and not crossed and (padding := call.padding()) is not None:
            real = ~padding
            self._padded[call.path] = self._padded.get(call.path, 0) + int(padding.sum())
        keys = real if read is None and not crossed and t == s else None
        members = _members(read, keys, self._key_sets, (b, s), call.q.device)
        views = [_view(real, None if crossed else read, members, n, t, s) for n in range(b)]
        return views, without

    def _uniform(self, call: Call, views: list[SequenceView], stack: str) -> Sums:
        """The sums of a head without preferences: the same for all layers that share a mask, and worked out once."""
        shape = (stack, *call.q.shape[::2], call.k.shape[2])
        real = [view.real for view in views]
        for mask, counted, other, level in self._level:
            same = mask is call.mask or (isinstance(mask, Visible) and mask.structural and mask == call.mask)
            if same and other == shape and all(map(_alike, counted, real)):
                return level
        level = Sums(_mask_heads(call), self._max_offset, self._masses)
        stream(call, views, level, scan_tile=select_scan(self._implementation, call), uniform=True)
        self._level = [*self._level, (call.mask, real, shape, level)][-_KEPT_MASKS:]
        return level

    def result(self) -> HeadStatistics:
        """The statistics of all that was seen so far. Raises ManyheadsError where that is nothing."""
        seen = self._modules.seen
        if not seen:
            raise ManyheadsError("no attention was seen: nothing ran through the door")
        chance = _gathered(seen, self._chance, self._chance, self._without, self._masses, self._max_offset)
        nothing = {
            name: np.full_like(getattr(chance, name), np.nan) for name in ("top_offsets", "logit_std", "output_norm")
        }
        found = _gathered(seen, self._sums, self._chance, self._without, self._masses, self._max_offset)
        padded = np.array([self._padded.get(module.path, 0) for module in seen])
        return replace(found, chance=replace(chance, **nothing), uncalled=self._modules.uncalled, padded=padded)


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether the same queries are counted."""
    if one is None or other is None:
        return one is other
    return one is other or torch.equal(one, other)


def _fitting(side: Tokens | None, batch: int, length: int) -> Tokens | None:
    """The tokens of one side of a call, where there are as many as the call has; None for another batch or length."""
    if side is None or tuple(side.ids.shape) != (batch, length):
        return None
    return side


def _members(
    read: Tokens | None, kept: Tensor | None, sets: Mapping[str, KeySet], shape: tuple[int, int], device: torch.device
) -> Tensor:
    """(1 + sets, b, s): the first real key of each text, and membership of each set; `kept`: real keys where no text is read."""
    real = torch.ones(shape, dtype=torch.bool, device=device) if kept is None else kept.to(device)
    if read is not None and read.real is not None:
        real = read.real.to(device)
    first = real & (real.long().cumsum(-1) == 1)
    if read is not None and read.begins is not None:
        first = real & read.begins.to(device)
    members = [first]
    for name, keys in sets.items():
        if read is None:
            members.append(torch.zeros_like(first))
            continue
        ids = read.ids.to(device)
        found = keys(ids) if callable(keys) else torch.isin(ids, torch.as_tensor(keys, device=device).to(ids.dtype))
        if not isinstance(found, Tensor) or tuple(found.shape) != shape:
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ManyheadsError(
                f"key set {shown(name)} answered {what}; expected one boolean for each of the ids {shape}"
            )
        members.append(found.bool() & real)
    return torch.stack(members).float()


def _view(queries: Tensor | None, read: Tokens | None, members: Tensor, n: int, t: int, s: int) -> SequenceView:
    real = None if queries is None else queries[n]
    if read is None:
        return SequenceView(real, None, None, None, lane_padded(members[:, n].contiguous()), s - t)
    keys = read.ids[n].to(torch.int32)
    before = torch.cat((keys.new_full((1,), -1), keys[:-1]))
    if read.begins is not None:  # what stands before a text in its row is another one's
        before = torch.where(read.begins[n], -1, before)
    if read.real is not None:
        kept = read.real[n]
        keys = torch.where(kept, keys, -2)
        before = torch.where(torch.cat((kept.new_zeros(1), kept[:-1])), before, -1)
    return SequenceView(
        real,
        keys[s - t :].contiguous(),
        lane_padded(keys),
        lane_padded(before),
        lane_padded(members[:, n].contiguous()),
        s - t,
    )


def _mask_heads(call: Call) -> int:
    """1 where all heads see the same keys, else their number."""
    mask = call.mask
    apart = isinstance(mask, PerHead) or (isinstance(mask, Tensor) and mask.dim() > 2 and mask.shape[-3] > 1)
    return call.q.shape[1] if apart else 1


def _norms(out: Tensor, views: list[SequenceView]) -> Tensor:
    """(h,): sums of the outputs' norms over the queries that are counted."""
    total = torch.zeros(out.shape[1], dtype=torch.float64, device=out.device)
    for n, view in enumerate(views):
        norms = torch.linalg.vector_norm(out[n].float(), dim=-1).double()
        total += norms.sum(1) if view.real is None else norms[:, view.real].sum(1)
    return total


def _gathered(
    seen: tuple[AttentionModule, ...], sums: Mapping[str, Sums], chance: Mapping[str, Sums], without: Mapping[str, set[str]],
    masses: tuple[str, ...], max_offset: int,
) -> HeadStatistics:  # fmt: skip
    # One row of chance may stand for all heads of a module.
    columns = [(0,) if sums is chance and sums[module.path].heads == 1 else module.computed for module in seen]
    most = max(max(each) for each in columns) + 1

    def rows(of: Callable[[str], Tensor]) -> Floats:
        parts = [of(module.path).numpy() for module in seen]
        whole = np.full((len(parts), most, *parts[0].shape[1:]), np.nan)
        for row, part, numbers in zip(whole, parts, columns, strict=True):
            for number, values in zip(numbers, part, strict=True):
                if number >= 0:  # else a zeroed head, where one was removed
                    row[number] = values
        return whole

    def mean(name: str, by: str = "queries") -> Floats:
        def of(path: str) -> Tensor:
            part, count = sums[path].totals[name], sums[path].totals[by]
            return part / (count[:, None] if part.dim() == 2 else count)

        return rows(of)

    def mass(at: int) -> Callable[[str], Tensor]:
        def of(path: str) -> Tensor:
            found = sums[path].totals["mass"][at] / chance[path].totals["seen"][at]
            return torch.full_like(found, torch.nan) if masses[at] in without[path] else found

        return of

    def eligible(at: int) -> Callable[[str], Tensor]:
        return lambda path: chance[path].totals["seen"][at].expand(sums[path].heads)

    crossed = np.array([is_cross(module.stack) for module in seen])
    offsets, tops, distance = mean("offsets"), mean("tops"), mean("distance", "attended")
    for array in (offsets, tops, distance):
        array[crossed] = np.nan
    return HeadStatistics(
        seen, max_offset, np.array([int(sums[module.path].totals["queries"].max()) for module in seen]),
        {name: rows(mass(at)) for at, name in enumerate(masses)},
        {name: rows(eligible(at)) for at, name in enumerate(masses)},
        offsets, tops, mean("entropy"), distance, mean("logit_std"), np.maximum(0.0, 1 - mean("attended")), mean("norm"), None,
    )  # fmt: skip
