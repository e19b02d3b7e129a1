"""What the x-ray says of heads: what each does, how much each matters, how many can go, and where each looks.

One `Section` of `models.xray`. Its object is made of numbers alone, its tables of the object (`heads.section_tables`); the
maps, which are for the page only, stay with the section.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head, format_head, parse_head
from manyheads.heads.budget import removable
from manyheads.heads.conllu import Sentence
from manyheads.heads.importance import FIRST_ORDER, Importance, importance, rank_correlation
from manyheads.heads.maps import HeadMaps, fit, head_maps
from manyheads.heads.maps_page import HeadNote, grid_widget, maps_widget, token_texts
from manyheads.heads.metrics import Metric
from manyheads.heads.roles import RoleReport, roles
from manyheads.heads.section_tables import CLEAREST, MATTER, ROLES, tables
from manyheads.models.xray_parts import Part, Running
from manyheads.report.html import Widget

__all__ = ["MAP_TOKENS", "HeadsSection"]

MAP_TOKENS = 2_048
WINDOW_TOKENS = 128
WINDOWS = 8
EXTREMES = 8
"""As many of the heads that seem to matter most, and least, are taken out to see whether they do."""
_LEAST_WINDOW = 16
_WAYS = ("zero", "mean")
_SHARE = 0.01
_SECONDS_BETWEEN_WORDS = 5.0

Say = Callable[[str], None]


@dataclass(eq=False)
class HeadsSection:
    """Looks into the heads of the model that is x-rayed.

    exact       take every head out, not only those at either end
    map_tokens  tokens of the text that the maps show
    conllu      sentences with gold heads, for the syntactic roles
    """

    exact: bool = False
    map_tokens: int = MAP_TOKENS
    conllu: Sequence[Sentence] | None = None
    _maps: HeadMaps | None = field(default=None, init=False)
    _texts: dict[str, list[str]] = field(default_factory=dict, init=False)

    def __call__(self, run: Running, say: Say) -> Part:
        """Everything; where a part cannot be had, its reason stands in its place."""
        began = time.perf_counter()
        data: dict[str, Any] = {
            "roles": _reasoned(lambda: self._roles(run, say)),
            "importance": _reasoned(lambda: self._importance(run, say)),
        }
        data["removable"] = data["importance"].pop("removable", {"reason": data["importance"]["reason"], "texts": []})
        data["maps"] = _reasoned(lambda: self._look(run, say))
        data["seconds"] = time.perf_counter() - began
        return Part("heads", data, tables(data))

    def widgets(self, data: Any) -> tuple[Widget, ...]:
        """What the page shows beside the tables, of the object that this section made."""
        seen = [] if self._maps is None else [layer.head(n) for layer in self._maps.layers for n in range(layer.heads)]
        notes = _notes(data) or [HeadNote(head) for head in seen]
        if not notes:
            return ()
        measure = "" if data["importance"]["reason"] else MEASURES[data["importance"]["method"]]
        made = [grid_widget(notes, after=ROLES, roles=not data["roles"]["reason"])]  # plain cells where there are none
        if self._maps is not None:
            made.append(maps_widget(self._maps, self._texts, notes, after=ROLES))
        if measure:
            made.append(grid_widget(notes, after=MATTER, roles=False, importance=measure))
        return tuple(made)

    def _roles(self, run: Running, say: Say) -> dict[str, Any]:
        _check_text(run)
        found = roles(
            run.loaded.model, run.loaded.tokenizer, texts=[_read(run)], conllu=self.conllu, seed=run.seed,
            bos=run.bos, say=say,
        )  # fmt: skip
        return _told_roles(found)

    def _importance(self, run: Running, say: Say) -> dict[str, Any]:
        _check_text(run)
        if run.no_score:
            raise ManyheadsError(f"importance is how much the loss depends on a head: {run.no_score}")
        model, bos = run.loaded.model, _front(run)
        halves = [_windows(half, front=bos, room=run.limit) for half in _halves(run.ids)]
        metric = _after_bos if bos else None
        batches = [batch for half in halves for batch in half]
        pace = _Pace(say)
        say(f"importance of every head: one backward pass on each of {len(batches)} windows")
        first = importance(model, batches, metric=metric, say=pace.counted("windows"))
        order = first.heads() if self.exact else _extremes(first)
        say(f"taking {len(order)} heads out, one at a time, for their mean")
        # Half of the windows will do: it takes a pass for each head and window.
        fewer = [half[::2] for half in halves]
        judged = [batch for half in fewer for batch in half]
        exact = importance(model, judged, metric=metric, method="mean", heads=order, say=pace.counted("passes"))
        told = _told_importance(first, exact, every=self.exact)
        found, parts = (exact, fewer) if self.exact else (first, halves)
        orders = [_order(found, len(parts[0]), first=half == 1) for half in range(2)]
        told["removable"] = _removable(run, orders, halves, metric=metric, pace=pace)
        told |= {
            "windows": len(batches),
            "window_tokens": batches[0].shape[1] - len(bos),
            "exact_windows": len(judged),
        }
        return told

    def _look(self, run: Running, say: Say) -> dict[str, Any]:
        inputs, texts = _sample(run, self.map_tokens)
        heads = sum(
            a.num_heads
            for stack in (run.stack.encoder, run.stack.decoder)
            if stack
            for b in stack.blocks
            for a in b.attentions
        )
        count = next(iter(inputs.values())).shape[1]
        say(f"where every head looks, on {count:,} tokens")
        began = time.perf_counter()
        shape = fit(heads, two_sided=run.stack.encoder is not None)
        self._maps, self._texts = head_maps(run.loaded.model, inputs, shape=shape), texts
        return {
            "reason": "", "tokens": count, "heads": self._maps.heads, "rows": shape.rows, "keys": shape.keys,
            "blocks": shape.blocks, "seconds": time.perf_counter() - began,
        }  # fmt: skip


HALVES = ("the first half of the text", "the second half")
MEASURES = {
    FIRST_ORDER: "How strongly the loss depends on a factor on the head's output (Michel et al. 2019)",
    "mean": "What the loss rises by, in nats a token, when the head gives its mean instead",
}


def _reasoned(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` returns, with the reason "" for nothing missing; the one line of a refusal where it is refused."""
    try:
        return {"reason": "", **make()}
    except ManyheadsError as error:
        return {"reason": str(error)}


def _check_text(run: Running) -> None:
    if not run.of_text:
        raise ManyheadsError(f"no text could be read: {run.no_text}")


def _read(run: Running) -> str:
    """The part of the text that `ids` are."""
    return "".join(token_texts(run.loaded.tokenizer, run.text, run.ids))


def _front(run: Running) -> list[int]:
    return [int(run.loaded.tokenizer.bos_token_id)] if run.bos else []


def _halves(ids: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    return ids[: len(ids) // 2], ids[len(ids) // 2 :]


def _windows(ids: Sequence[int], *, front: Sequence[int], room: int) -> list[Tensor]:
    """Up to WINDOWS windows spread over `ids`, all of one length, each behind `front`."""
    most = min(WINDOW_TOKENS, (room or WINDOW_TOKENS + len(front)) - len(front))
    width = min(most, max(len(ids) // WINDOWS, _LEAST_WINDOW))
    count = min(len(ids) // width, WINDOWS)
    if count < 2:
        raise ManyheadsError(
            f"each half of the text is {len(ids)} tokens; importance needs two windows of {_LEAST_WINDOW} in each, "
            f"{4 * _LEAST_WINDOW} tokens in all"
        )
    starts = [n * (len(ids) - width) // (count - 1) for n in range(count)]
    return [torch.tensor([[*front, *ids[start : start + width]]]) for start in starts]


def _after_bos(outputs: Any, batch: dict[str, Any]) -> tuple[Tensor, float]:
    """The loss without the first token of the text, which is scored neither with a BOS before it nor without."""
    labels = batch["input_ids"][:, 2:]
    scores = outputs.logits[:, 1:-1].float()
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), labels.numel()


def _removable(
    run: Running,
    orders: Sequence[Sequence[Head]],
    halves: Sequence[Sequence[Tensor]],
    *,
    metric: Metric | None,
    pace: _Pace,
) -> dict[str, Any]:
    """How many heads of `orders[i]`, which comes from the other half, can go on `halves[i]`."""
    rows = []
    for number, half in enumerate(halves):
        for how in _WAYS:
            pace.say(f"taking heads out until the loss is {_SHARE:.0%} higher: {HALVES[number]}, {how}")
            one = removable(
                run.loaded.model,
                half,
                orders[number],
                how=how,
                share=_SHARE,
                metric=metric,
                seed=run.seed,
                say=pace.passed,
            )
            rows.append(
                {
                    "text": HALVES[number], "how": how, "heads": one.heads, "low": one.low, "high": one.high,
                    "beyond": one.beyond, "total": one.total, "counts": list(one.counts), "losses": list(one.losses),
                }
            )  # fmt: skip
    return {"reason": "", "share": _SHARE, "texts": rows}


def _extremes(found: Importance) -> tuple[Head, ...]:
    ranking = found.ranking()
    return ranking if len(ranking) <= 2 * EXTREMES else (*ranking[:EXTREMES], *ranking[-EXTREMES:])


def _order(found: Importance, count: int, *, first: bool) -> list[Head]:
    """Least important first, by the first `count` of the batches alone or by the rest."""
    table = (found.by_batch[:count] if first else found.by_batch[count:]).mean(0)
    row = {(place.stage, place.layer): n for n, place in enumerate(found.places)}
    return sorted(found.heads(), key=lambda head: float(table[row[head.stage, head.layer], head.head]))


def _told_importance(first: Importance, exact: Importance, *, every: bool) -> dict[str, Any]:
    """A row a head; `method` is that of `score`, which the grid shows and heads are ordered by."""
    judged = set(exact.heads())
    rows = []
    for head in first.heads():
        loss = exact.score(head) if head in judged else None
        own = first.score(head)
        rows.append(
            {"head": format_head(head), "first_order": own, "loss_without": loss, "score": loss if every else own}
        )
    try:
        agreement = rank_correlation(first, exact)
    except ManyheadsError:  # too few heads, or all alike
        agreement = None
    return {
        "method": "mean" if every else FIRST_ORDER, "exact_heads": len(judged), "baseline": first.baseline, "heads": rows,
        "rank_correlation": agreement, "first_order_seconds": first.seconds, "exact_seconds": exact.seconds,
        "prefix_reused": exact.reused,
    }  # fmt: skip


def _told_roles(found: RoleReport) -> dict[str, Any]:
    """How many heads hold each role, and the figures of its clearest and of those it is the best of: all would be megabytes."""
    labels = found.labels()
    rows = []
    for one in found.evidence:
        holding = found.clearest(one.name)
        heads = [
            {
                "head": format_head(role.head), "score": role.score, "control": _finite(role.null), "low": _finite(role.low),
                "high": _finite(role.high), "q_value": _finite(role.q_value), "detail": role.detail,
            }
            for place, role in enumerate(holding)
            if place < CLEAREST or labels[role.head] == one.name
        ]  # fmt: skip
        rows.append(
            {"role": one.name, "score_is": one.what, "control": one.control, "holding": len(holding), "heads": heads}
        )
    return {
        "fdr": found.fdr, "tests": found.tests, "bos": found.bos, "windows": found.windows,
        "window_tokens": found.window_tokens, "roles": rows,
        "not_tested": [{"role": name, "why": why} for name, why in found.not_tested],
        "labels": {format_head(head): label for head, label in labels.items()},
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _notes(data: dict[str, Any]) -> list[HeadNote]:
    """A note of every head that is known of, the one to open first at the front: the clearest of the rarest role."""
    found, weights = data["roles"], data["importance"]
    labels = {} if found["reason"] else found["labels"]
    scores = {} if weights["reason"] else {row["head"]: row for row in weights["heads"]}
    told = {
        (one["role"], row["head"]): f"{one['role']} {row['score']:.2f}"
        + (f", control {row['control']:.2f}" if row["control"] is not None else "")
        for one in ([] if found["reason"] else found["roles"])
        for row in one["heads"]
    }
    notes = []
    for address in dict.fromkeys([*scores, *labels]):
        label, row = labels.get(address, ""), scores.get(address)
        words = [told[label, address]] if label else []
        if row is not None:
            words.append(f"importance {row['score']:.2g}")
            words += [f"loss {row['loss_without']:+.2g} without it"] if row["loss_without"] is not None else []
        exact = row is not None and row["loss_without"] is not None
        notes.append(HeadNote(parse_head(address), label, "; ".join(words), row["score"] if row else None, exact=exact))
    clearest = {
        one["role"]: one["heads"][0]["head"] for one in ([] if found["reason"] else found["roles"]) if one["heads"]
    }
    first = next((clearest[role] for role in _SHOWN_FIRST if role in clearest), "")
    return sorted(notes, key=lambda note: format_head(note.head) != first)


_SHOWN_FIRST = ("induction", "duplicate token", "previous token")


def _sample(run: Running, most: int) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """What the maps are made of: inputs of the model, and the texts of their tokens."""
    _check_text(run)
    name = run.loaded.model.main_input_name
    if name != "input_ids":
        raise ManyheadsError(f"its encoder hears {name}, and maps are made of text")
    front = _front(run) if run.stack.encoder is None else []
    ids = run.ids[: min(most, run.limit or most) - len(front)]
    texts = token_texts(run.loaded.tokenizer, run.text, ids)
    place = run.loaded.model.device
    tokens = torch.tensor([[*front, *ids]], device=place)
    if run.stack.encoder is not None and run.stack.decoder is not None:
        return {"input_ids": tokens, "decoder_input_ids": tokens}, {"source": texts, "queries": texts}
    return {"input_ids": tokens}, {"queries": [*(["BOS "] * len(front)), *texts]}


class _Pace:
    """Words about progress, but not more often than a person reads them."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self._last = time.perf_counter()
        self._passes = 0

    def _due(self) -> bool:
        now = time.perf_counter()
        if now - self._last < _SECONDS_BETWEEN_WORDS:
            return False
        self._last = now
        return True

    def counted(self, what: str) -> Callable[[int, int], None]:
        """For functions that tell (done, to do)."""

        def told(done: int, total: int) -> None:
            if self._due():
                self.say(f"  {done:,} of {total:,} {what}")

        return told

    def passed(self) -> None:
        """For one that only tells of each pass."""
        self._passes += 1
        if self._due():
            self.say(f"  {self._passes:,} passes")
