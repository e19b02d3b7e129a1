"""What a head gives in place of its output when it is taken away: nothing, its mean, or another text's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.attention_modules import is_cross
from manyheads.heads.batches import Batch, are_separate, packed, side_names
from manyheads.models.door.door import Call

__all__ = [
    "METHODS",
    "POSITIONS",
    "HeadReplacement",
    "MeanOutputs",
    "RecordedOutputs",
    "first_positions",
    "has_first",
    "real_positions",
    "resampled_outputs",
]

METHODS = ("zero", "mean", "resample")
POSITIONS = ("all", "later", "first")
"""Where a head is taken away: everywhere; everywhere but at the first real position of a sequence, which many causal models
use as a sink, so that what happens to it reaches every later token; there alone. Attention that is not causal has no such
position: "later" is everywhere in it, "first" nowhere."""


class HeadReplacement:
    """A gate that takes heads away: `gone` {path: heads}, at every call of the module. What they give instead is in `instead`
    {path: (h, v) of means, or (b, h, t, v) for each call of a forward}; a path without an entry gives zeros.

    positions  one of POSITIONS; `batch` is what the forward is called with, `stacks` {path: stack}, where it is not "all"
    """

    def __init__(self, positions: str = "all") -> None:
        self.gone: Mapping[str, Sequence[int]] = {}
        self.instead: Mapping[str, Tensor | Sequence[Tensor]] = {}
        self.positions = positions
        self.batch: Batch = {}
        self.stacks: Mapping[str, str] = {}
        self._calls: dict[str, int] = {}

    def take(self, gone: Mapping[str, Sequence[int]]) -> None:
        """The next forward is without these heads."""
        self.gone, self._calls = gone, {}

    def __call__(self, call: Call, out: Tensor) -> Tensor:
        gone = self.gone.get(call.path)
        if not gone:
            return out
        heads, given = list(gone), self._given(call.path, out, list(gone))
        out = out.clone()
        first = None if self.positions == "all" else first_positions(self.batch, call, self.stacks[call.path])
        if first is None:
            out[:, heads] = out[:, heads] if self.positions == "first" else given
        else:
            where = first if self.positions == "first" else ~first
            out[:, heads] = torch.where(where[:, None, :, None], given, out[:, heads])
        return out

    def _given(self, path: str, out: Tensor, heads: list[int]) -> Tensor:
        """What they give instead, in a shape that fits (b, heads, t, v)."""
        instead = self.instead.get(path)
        if instead is None:
            return out.new_zeros(())
        if isinstance(instead, Tensor):
            return instead[heads][:, None].to(out)
        number = self._calls.get(path, 0)  # a module that several layers share has other outputs in each
        self._calls[path] = number + 1
        return instead[number][:, heads].to(out)


class MeanOutputs:
    """An observer that takes the mean output (h, v) of each head over all real positions of all batches; `later`: without
    the first ones."""

    def __init__(self, stacks: Mapping[str, str], *, later: bool = False) -> None:
        self.batch: Batch = {}
        self._stacks, self._later = stacks, later
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, call: Call, out: Tensor) -> None:
        real = real_positions(self.batch, call, self._stacks[call.path])
        first = first_positions(self.batch, call, self._stacks[call.path]) if self._later else None
        real = real if first is None else real & ~first
        wide = torch.float32 if out.device.type == "mps" else torch.float64  # which Apple's GPUs do not have
        total = torch.einsum("bhtv,bt->hv", out.detach().to(wide), real.to(wide))
        known = self._sums.get(call.path)
        self._sums[call.path] = total if known is None else known + total
        self._counts[call.path] = self._counts.get(call.path, 0) + int(real.sum())

    def means(self) -> dict[str, Tensor]:
        """By path."""
        return {path: total / max(self._counts[path], 1) for path, total in self._sums.items()}


class RecordedOutputs:
    """An observer that keeps the outputs of the heads of one forward, by path and call, and which positions are real."""

    def __init__(self, batch: Batch, stacks: Mapping[str, str]) -> None:
        self._batch, self._stacks = batch, stacks
        self.kept: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def __call__(self, call: Call, out: Tensor) -> None:
        real = real_positions(self._batch, call, self._stacks[call.path])
        self.kept.setdefault(call.path, []).append((out, real))


def real_positions(batch: Batch, call: Call, stack: str) -> Tensor:
    """(b, t), True where a query is no padding, by the masks of the batch; of images and sound without the padding that the
    model puts in itself; all of them where neither tells."""
    begin, _ = side_names(batch, stack)
    mask = None if begin is None else batch.get(f"{begin}attention_mask")
    shape = (call.q.shape[0], call.q.shape[2])
    if isinstance(mask, Tensor) and tuple(mask.shape) == shape:
        return mask != 0
    wordless = begin is None or not isinstance(batch.get(f"{begin}input_ids"), Tensor)
    padding = call.padding() if wordless and not is_cross(stack) else None
    return torch.ones(shape, dtype=torch.bool, device=call.q.device) if padding is None else ~padding


def has_first(module: Any, stack: str) -> bool:
    """Whether an attention module is causal, so that its first query sees one key alone; as transformers takes it, one that
    does not say is."""
    return not is_cross(stack) and bool(getattr(module, "is_causal", True))


def first_positions(batch: Batch, call: Call, stack: str) -> Tensor | None:
    """(b, t), True at the first query of each text that is no padding, of each that is packed into a row; None where attention
    is not causal."""
    if not has_first(call.module, stack):
        return None
    real = real_positions(batch, call, stack)
    begins = packed(batch, side_names(batch, stack)[0] or "")
    if begins is not None and begins.shape == real.shape and are_separate(call, begins):
        return real & begins
    return real & (real.long().cumsum(-1) == 1)


def resampled_outputs(own: RecordedOutputs, after: RecordedOutputs) -> dict[str, list[Tensor]]:
    """For each sequence of a batch, the outputs of the next one: the last is given those of the first of the batch after.
    By path, one for each call.

    Real positions are matched in order, from the start again where the other text is shorter; padding keeps its own.
    """
    found = {}
    for path, calls in own.kept.items():
        others = after.kept.get(path, [])
        if len(others) < len(calls):
            raise ManyheadsError(
                f"{path} was called {len(calls)} times for one text and {len(others)} times for the next, which it was to be "
                "resampled from"
            )
        found[path] = [_given(*mine, *other) for mine, other in zip(calls, others, strict=False)]
    return found


def _given(out: Tensor, real: Tensor, following: Tensor, also: Tensor) -> Tensor:
    given = out.clone()
    for row in range(len(out)):
        last = row + 1 == len(out)
        other, seen = (following[0], also[0]) if last else (out[row + 1], real[row + 1])
        to, source = real[row].nonzero()[:, 0], seen.nonzero()[:, 0]
        if len(source):
            picked = source[torch.arange(len(to), device=to.device) % len(source)]
            given[row][:, to] = other[:, picked]
    return given
