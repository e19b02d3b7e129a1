"""What the x-ray says of heads: what each does, how much each matters, how many can go, and where each looks.

One `Section` of `xray.run`. Its object is made of numbers alone, its tables of the object (`xray.heads_tables`); the
maps, which are for the page only, stay with the section.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyheads.errors import ManyheadsError
from manyheads.heads.address import format_head, parse_head
from manyheads.heads.effects import DRIFT, SECONDS
from manyheads.heads.page.map_text import MAP_TOKENS, map_text
from manyheads.heads.page.maps import HeadMaps, fit, head_maps
from manyheads.heads.page.widgets import HeadNote, grid_widget, maps_widget, token_texts
from manyheads.heads.roles import LEAST_EFFECT, RoleReport, Sentence, head_roles
from manyheads.heads.roles.tables import SHOWN_FIRST
from manyheads.report.html import Widget, embedded
from manyheads.report.jsonform import encode, finite
from manyheads.xray.heads_importance import around, weighed
from manyheads.xray.heads_tables import CLEAREST, MATTER, ROLES, tables
from manyheads.xray.parts import Part, Running

__all__ = ["MAP_TOKENS", "SECONDS", "HeadsSection"]


Say = Callable[[str], None]

# Of the page of an x-ray: its prices, their plot, and all tables.
_REST_BYTES = 300_000


@dataclass(eq=False)
class HeadsSection:
    """Looks into the heads of the model that is x-rayed.

    exact       take every head out on as many windows as the most promising, however long it takes
    seconds     begin no new work on taking heads out after that
    map_tokens  tokens of the text that the maps show
    conllu      sentences with gold heads, for the syntactic roles
    least_effect   how far above its control the score of a role must be
    """

    exact: bool = False
    seconds: float = SECONDS
    map_tokens: int = MAP_TOKENS
    conllu: Sequence[Sentence] | None = None
    least_effect: float = LEAST_EFFECT
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
        data["maps"] = _reasoned(lambda: self._look(run, data, say))
        data["seconds"] = time.perf_counter() - began
        return Part("heads", data, tables(data))

    def widgets(self, data: Any) -> tuple[Widget, ...]:
        """What the page shows beside the tables, of the object that this section made."""
        seen = [] if self._maps is None else [head for layer in self._maps.layers for _, head in layer.addresses()]
        notes = _notes(data) or [HeadNote(head) for head in seen]
        if not notes:
            return ()
        measure = "" if data["importance"]["reason"] else _measure(data["importance"])
        made = [grid_widget(notes, after=ROLES, roles=not data["roles"]["reason"])]  # plain cells where there are none
        if self._maps is not None:
            made.append(maps_widget(self._maps, self._texts, notes, after=ROLES))
        if measure:
            made.append(grid_widget(notes, after=MATTER, roles=False, importance=measure))
        return tuple(made)

    def _roles(self, run: Running, say: Say) -> dict[str, Any]:
        _check_text(run)
        # Before running text stands what was asked for; an encoder reads its frame as its tokenizer makes it.
        bos = run.bos or (False if run.stack.encoder is None else None)
        found = head_roles(
            run.loaded.model, run.loaded.tokenizer, texts=[_read(run)], conllu=self.conllu, seed=run.seed,
            bos=bos, least_effect=self.least_effect, say=say,
        )  # fmt: skip
        told = _told_roles(found)
        if not run.bos:
            told["bos"] = told["bos"].replace("as asked", "as for the loss; bos=True puts a token before")
        return told

    def _importance(self, run: Running, say: Say) -> dict[str, Any]:
        _check_text(run)
        return weighed(run, every=self.exact, seconds=self.seconds, say=say)

    def _look(self, run: Running, data: dict[str, Any], say: Say) -> dict[str, Any]:
        _check_text(run)
        most = min(self.map_tokens, run.limit or self.map_tokens)
        inputs, texts = map_text(run.loaded, run.text, run.ids, around=around(run), most=most)
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
        shape = fit(heads, two_sided=run.stack.encoder is not None, beside_bytes=self._beside(data, texts))
        self._maps, self._texts = head_maps(run.loaded.model, inputs, shape=shape), texts
        return {
            "reason": "", "tokens": count, "heads": self._maps.heads, "rows": shape.rows, "keys": shape.keys,
            "blocks": shape.blocks, "seconds": time.perf_counter() - began,
        }  # fmt: skip

    def _beside(self, data: dict[str, Any], texts: Mapping[str, Sequence[str]]) -> int:
        """Bytes of the page of an x-ray without its maps."""
        grids = sum(len(widget.markup.encode()) for widget in self.widgets(data))
        return _REST_BYTES + grids + len(encode(data, compact=True)) + len(embedded(texts))


def _measure(own: dict[str, Any]) -> str:
    """What the colours of the heads mean."""
    what = "How far the output drifts" if own["objective"] == DRIFT else "What the loss rises by"
    where = "" if own["first_position"]["reason"] else " at all positions but the first"
    return f"{what}, {own['unit']}, when the head gives its mean instead{where}"


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


def _told_roles(found: RoleReport) -> dict[str, Any]:
    """How many heads hold each role, and the figures of its clearest and of those it is the best of: all would be megabytes."""
    labels = found.labels()
    rows = []
    for one in found.evidence:
        holding = found.clearest(one.name)
        heads = [
            {
                "head": format_head(role.head), "score": role.score, "control": finite(role.null), "low": finite(role.low),
                "high": finite(role.high), "q_value": finite(role.q_value), "detail": role.detail,
            }
            for place, role in enumerate(holding)
            if place < CLEAREST or labels[role.head] == one.name
        ]  # fmt: skip
        rows.append(
            {"role": one.name, "score_is": one.what, "control": one.control, "holding": len(holding), "heads": heads}
        )
    return {
        "fdr": found.fdr, "least_effect": found.least_effect, "tests": found.tests, "bos": found.bos, "windows": found.windows,
        "window_tokens": found.window_tokens, "roles": rows,
        "not_tested": [{"role": name, "why": why} for name, why in found.not_tested],
        "left_out": [one.as_json() for one in found.left_out],
        "labels": {format_head(head): label for head, label in labels.items()},
    }  # fmt: skip


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
            words += _cost(row, weights)
        apart = row is not None and row["told_apart"]
        notes.append(HeadNote(parse_head(address), label, "; ".join(words), row["score"] if row else None, apart=apart))
    clearest = {
        one["role"]: one["heads"][0]["head"] for one in ([] if found["reason"] else found["roles"]) if one["heads"]
    }
    first = next((clearest[role] for role in SHOWN_FIRST if role in clearest), "")
    return sorted(notes, key=lambda note: format_head(note.head) != first)


def _cost(row: dict[str, Any], weights: dict[str, Any]) -> list[str]:
    """What is known of what a head costs, in words."""
    if row["score"] is None:
        return []
    what = "drift" if weights["objective"] == DRIFT else "loss"
    said = f"{what} {row['score']:+.2g} {weights['unit']} without it"
    if row["loss_without"] is None:
        return [f"{said}, to first order"]
    if row["told_apart"]:
        return [f"{said}, 95% {row['loss_low']:+.2g} to {row['loss_high']:+.2g}"]
    return [f"{said}, not told apart from 0"]
