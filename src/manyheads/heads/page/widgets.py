"""The heads of a model on its page: a grid coloured by role, one by importance, and the map of each head to look into."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head, format_head
from manyheads.heads.page.maps import HeadMaps, LayerMaps
from manyheads.models.load.tokenizing import tokenized
from manyheads.quoting import visible
from manyheads.report.html import Templates, Widget, embedded

__all__ = ["HeadNote", "grid_widget", "maps_widget", "token_texts"]

_TEMPLATES = Templates("manyheads.heads.page")
_SCRIPTS = (
    "maps_data.js",
    "map_canvas.js",
    "map_roles.js",
    "map_text.js",
    "map_lists.js",
    "map_view.js",
    "map_find.js",
)
"""Each uses those before it."""
_SIDE, _STEP, _LEFT, _BOTTOM = 14, 16, 26, 16
_LEAST_SIDE = 16
"""Pixels of a cell at least, for fingers: on a narrow screen the grid scrolls."""
_NO_ROLE = "no role that beats its control"
_MOST_TICKS = 16
_LOOKS = {
    "first token": "F", "previous token": "P", "itself": "S", "induction": "In", "duplicate token": "Du",
    "coreference": "Co", "delimiter": "D", "rare token": "R", "positional": "Po", "fixed offset": "Of", "next token": "N",
    "local window": "L",
}  # fmt: skip
"""The letters of each role that we know; its place here is its colour in heads.css. All others share one colour."""


@dataclass(frozen=True)
class HeadNote:
    """What is known of one head. `role`: "" for none that beats its control; `words`: what to say of it, one line;
    `importance`: None where nothing is known of it; `apart`: whether it is told apart from 0.
    """

    head: Head
    role: str = ""
    words: str = ""
    importance: float | None = None
    apart: bool = False


def grid_widget(notes: Sequence[HeadNote], *, after: str = "", roles: bool = True, importance: str = "") -> Widget:
    """The grids of heads, layers across and heads down, readable without scripts.

    `roles`: whether they were looked for; `importance`: what the measure is, "" where there is none.
    """
    grids: list[dict[str, Any]] = []
    for stage in dict.fromkeys(note.head.stack for note in notes):
        own = [note for note in notes if note.head.stack == stage]
        where = f" ({stage})" if stage else ""
        if roles:
            grids.append(_role_grid(own, f"Heads by role{where}"))
        if importance and any(note.importance is not None for note in own):
            grids.append(_importance_grid(own, f"Heads by importance{where}", importance))
        if not roles and not importance:
            grids.append(_grid(own, f"Heads{where}", "layers across, heads down", [("", None)] * len(own)))
    return _widget("grid.html", {"grids": grids}, after, ("grid.js",))


def _role_grid(notes: Sequence[HeadNote], title: str) -> dict[str, Any]:
    count = Counter(note.role for note in notes if note.role)
    names = [name for name, _ in count.most_common()]
    known = list(_LOOKS)
    kinds = {name: f"role-{known.index(name) if name in known else len(known)}" for name in names}
    letters, places = _letters(names), {name: place for place, name in enumerate([*names, ""])}
    grid = _grid(notes, title, "Layers across, heads down", [(kinds.get(note.role, ""), None) for note in notes])
    for cell, note in zip(grid["cells"], notes, strict=True):
        cell |= {"role": places[note.role], "letters": letters.get(note.role, "")}
    grid["key"] = [(kinds[name], name, count[name], letters[name]) for name in names]
    grid["key"].append(("", _NO_ROLE, sum(not note.role for note in notes), ""))
    return grid


def _letters(names: Sequence[str]) -> dict[str, str]:
    """A letter or two for each role, no two alike: colours alone do not tell ten roles apart, to some not even three."""
    found = {name: _LOOKS[name] for name in names if name in _LOOKS}
    for name in names:
        if name in found:
            continue
        own = "".join(filter(str.isalnum, name.rpartition(": ")[2].lower())) or "x"
        tried = [own[:2], *(own[0] + other for other in own[2:]), *(f"{own[0]}{n}" for n in range(1, len(names) + 2))]
        found[name] = next(letters for letters in tried if letters not in found.values())
    return found


def _importance_grid(notes: Sequence[HeadNote], title: str, measure: str) -> dict[str, Any]:
    values = [max(note.importance or 0.0, 0.0) for note in notes]
    most = max(values, default=0.0) or 1.0
    # The root, or a few heads would swamp the rest.
    fills = [
        (
            "" if note.importance is None else f"matter{' apart' if note.apart else ''}",
            round(math.sqrt(value / most), 3),
        )
        for note, value in zip(notes, values, strict=True)
    ]
    apart = sum(note.apart for note in notes)
    told = f"{measure}; full colour is {most:.3g}, and colour grows with the root"
    told += f"; outlined: {apart} of {len(notes)} that are told apart from 0" if apart > 0 else ""
    return _grid(notes, title, told, fills)


def _grid(
    notes: Sequence[HeadNote], title: str, description: str, fills: Sequence[tuple[str, float | None]]
) -> dict[str, Any]:
    layers = sorted({note.head.layer for note in notes})
    heads = max(note.head.head for note in notes) + 1
    column = {layer: n for n, layer in enumerate(layers)}
    cells = [
        {
            "kind": kind, "address": format_head(note.head), "words": _named(note), "strength": strength,
            "role": None, "letters": "", "x": _LEFT + _STEP * column[note.head.layer], "y": _STEP * note.head.head,
        }
        for note, (kind, strength) in zip(notes, fills, strict=True)
    ]  # fmt: skip
    every = -(-len(layers) // _MOST_TICKS)
    across = [{"at": _LEFT + _STEP * n + _SIDE / 2, "text": layers[n]} for n in range(0, len(layers), every)]
    down = [{"at": _STEP * n + _SIDE / 2, "text": n} for n in range(0, heads, -(-heads // _MOST_TICKS))]
    return {
        "title": title, "description": description, "cells": cells, "layer_ticks": across, "head_ticks": down,
        "left": _LEFT, "side": _SIDE, "width": _LEFT + _STEP * len(layers), "height": _STEP * heads + _BOTTOM, "key": [],
        "least_width": math.ceil((_LEFT + _STEP * len(layers)) * _LEAST_SIDE / _SIDE),
    }  # fmt: skip


def _named(note: HeadNote) -> str:
    name = format_head(note.head, short=True)
    return f"{name}: {note.words}" if note.words else name


def maps_widget(
    maps: HeadMaps, texts: Mapping[str, Sequence[str]], notes: Sequence[HeadNote], *, after: str = ""
) -> Widget:
    """The map of each head: choose one, point at a token, and see at which tokens the head looks.

    texts   the tokens as text: of "queries"; of "source" too where the model has an encoder in front of its decoder
    notes   what to say of a head, any of them; the first is the one that is open at the start
    """
    if not maps.layers:
        raise ManyheadsError("no head was seen while the text was read, so there is no map to show")
    known = {note.head: note for note in notes}
    stages = {layer.stage: _stage(layer) for layer in maps.layers}
    heads: list[dict[str, Any]] = []
    lines: list[str] = []
    choices: dict[str, list[tuple[int, str, str]]] = {}
    for layer in maps.layers:
        for head, at in layer.addresses():
            note = known.get(at, HeadNote(at))
            choices.setdefault(layer.stage, []).append((len(heads), format_head(at, short=True), note.words))
            told = {
                "address": format_head(at),
                "short": format_head(at, short=True),
                "stage": layer.stage,
                "words": note.words,
                "triangle": layer.triangular,
            }
            heads.append(told | {"role": note.role})
            lines.append(base64.b64encode(layer.encoded(head)).decode("ascii"))
    first = format_head(notes[0].head) if notes else ""
    start = next((n for n, head in enumerate(heads) if head["address"] == first), 0)
    data = {"stages": stages, "heads": heads, "texts": _texts(maps, texts), "start": start}
    values = {
        "choices": list(choices.items()), "keys": max(stage["strongest"] for stage in stages.values()),
        "data": embedded(data), "maps": "\n".join(lines),
    }  # fmt: skip
    return _widget("maps.html", values, after, _SCRIPTS)


def _widget(template: str, values: Mapping[str, object], after: str, scripts: Sequence[str]) -> Widget:
    markup, style = _TEMPLATES.fill(template, values), _TEMPLATES.text("heads.css")
    return Widget(markup, after, style, tuple(map(_TEMPLATES.text, scripts)))


def _stage(layer: LayerMaps) -> dict[str, Any]:
    """What the script has to know of the maps of a stage; `queries` and `keys` name the texts on either side."""
    return {
        "queries": "source" if layer.stage == "encoder" else "queries",
        "keys": "source" if layer.stage in ("encoder", "cross") else "queries",
        "rows": layer.rows.tolist(), "strongest": layer.strongest.shape[2],
        "down": layer.blocks.shape[1], "across": layer.blocks.shape[2],
        "blockQueries": layer.block_queries, "blockKeys": layer.block_keys,
    }  # fmt: skip


def _texts(maps: HeadMaps, texts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """A text for each token of each side, safe to show; frames of sound, which have no words, by their number."""
    found: dict[str, list[str]] = {}
    for layer in maps.layers:
        stage = _stage(layer)
        for side, count in ((stage["queries"], layer.queries), (stage["keys"], layer.keys)):
            own = texts.get(side)
            if own is not None and len(own) != count:
                raise ManyheadsError(
                    f"{len(own):,} token texts for the {count:,} tokens that {layer.path} sees ({side}); expected one each"
                )
            numbered = [f"{n + 1} " for n in range(count)]
            found[side] = [visible(text, keep_lines=True) for text in own] if own is not None else numbered
    return found


def token_texts(tokenizer: Any, text: str, ids: Sequence[int]) -> list[str]:
    """The part of `text` that each of `ids`, its first tokens, stands for; together they are that text.

    A character of several tokens stands with the first of them. Tokenizers that keep no offsets decode one by one.
    """
    if getattr(tokenizer, "is_fast", False):
        made = tokenized(tokenizer, text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        if list(made["input_ids"][: len(ids)]) == list(ids):
            ends = [0]
            for _, end in made["offset_mapping"][: len(ids)]:
                ends.append(max(int(end), ends[-1]))
            return [text[a:b] for a, b in pairwise(ends)]
    return [tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in ids]
