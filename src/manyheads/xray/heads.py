"""What the x-ray finds of heads: what each does, how much each matters, how many can go, and where each looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from manyheads.errors import ManyheadsError
from manyheads.heads.address import format_head
from manyheads.heads.effects import SECONDS
from manyheads.heads.left_out import NotMeasured
from manyheads.heads.page.map_text import MAP_TOKENS, map_text
from manyheads.heads.page.maps import fit, head_maps
from manyheads.heads.page.widgets import token_texts
from manyheads.heads.roles import LEAST_EFFECT, RoleReport, Sentence, head_roles
from manyheads.heads.roles.record import not_tested
from manyheads.report.html import embedded
from manyheads.report.jsonform import as_json, encode
from manyheads.xray.heads_importance import around, weighed
from manyheads.xray.heads_record import (
    HeadsFound,
    HeadWithRole,
    ImportanceFound,
    MapsFound,
    Removable,
    RoleFound,
    RolesFound,
)
from manyheads.xray.heads_tables import CLEAREST
from manyheads.xray.heads_widgets import grids
from manyheads.xray.running import Running

__all__ = ["MAP_TOKENS", "SECONDS", "HeadsAsked", "heads_found"]

Say = Callable[[str], None]
Found = TypeVar("Found")

# Of the page of an x-ray: its prices, their plot, and all tables.
_REST_BYTES = 300_000


@dataclass(frozen=True)
class HeadsAsked:
    """What is asked of heads.

    exact         take every head out on as many windows as the most promising, however long it takes
    seconds       begin no new work on taking heads out after that
    map_tokens    tokens of the text that the maps show
    conllu        sentences with gold heads, for the syntactic roles
    least_effect  how far above its control the score of a role must be
    """

    exact: bool = False
    seconds: float = SECONDS
    map_tokens: int = MAP_TOKENS
    conllu: Sequence[Sentence] | None = None
    least_effect: float = LEAST_EFFECT


def heads_found(run: Running, asked: HeadsAsked, say: Say) -> HeadsFound:
    """Everything; where a part cannot be had, its reason stands in its place."""
    began = time.perf_counter()
    found = _or_reason(lambda: _roles(run, asked, say))
    weights = _or_reason(lambda: weighed(_with_text(run), every=asked.exact, seconds=asked.seconds, say=say))
    importance, removable = (weights, Removable(weights.reason)) if isinstance(weights, NotMeasured) else weights
    maps = _or_reason(lambda: _maps(run, asked, found, importance, removable, say))
    return HeadsFound(found, importance, removable, maps, time.perf_counter() - began)


def _or_reason(make: Callable[[], Found]) -> Found | NotMeasured:
    """What `make` returns; the one line of a refusal where it is refused."""
    try:
        return make()
    except ManyheadsError as error:
        return NotMeasured(str(error))


def _with_text(run: Running) -> Running:
    if not run.of_text:
        raise ManyheadsError(f"no text could be read: {run.no_text}")
    return run


def _roles(run: Running, asked: HeadsAsked, say: Say) -> RolesFound:
    read = "".join(token_texts(run.loaded.tokenizer, run.text, _with_text(run).ids))
    # Before running text stands what was asked for; an encoder reads its frame as its tokenizer makes it.
    bos = run.bos or (False if run.stack.encoder is None else None)
    found = head_roles(
        run.loaded.model, run.loaded.tokenizer, texts=[read], conllu=asked.conllu, seed=run.seed, bos=bos,
        least_effect=asked.least_effect, say=say,
    )  # fmt: skip
    said = found.bos if run.bos else found.bos.replace("as asked", "as for the loss; bos=True puts a token before")
    return RolesFound(
        reason="", fdr=found.fdr, least_effect=found.least_effect, tests=found.tests, bos=said, windows=found.windows,
        window_tokens=found.window_tokens, roles=_clearest(found), not_tested=not_tested(found), left_out=found.left_out,
        labels={format_head(head): label for head, label in found.labels().items()},
    )  # fmt: skip


def _clearest(found: RoleReport) -> tuple[RoleFound, ...]:
    """How many heads hold each role, and the figures of its clearest and of those it is the best of: all would be megabytes."""
    labels, rows = found.labels(), []
    for one in found.evidence:
        holding = found.clearest(one.name)
        heads = tuple(
            HeadWithRole(format_head(role.head), role.score, role.null, role.low, role.high, role.q_value, role.detail)
            for place, role in enumerate(holding)
            if place < CLEAREST or labels[role.head] == one.name
        )
        rows.append(RoleFound(one.name, one.what, one.control, len(holding), heads))
    return tuple(rows)


def _maps(
    run: Running, asked: HeadsAsked, found: RolesFound | NotMeasured, importance: ImportanceFound | NotMeasured,
    removable: Removable, say: Say,
) -> MapsFound:  # fmt: skip
    most = min(asked.map_tokens, run.limit or asked.map_tokens)
    inputs, texts = map_text(_with_text(run).loaded, run.text, run.ids, around=around(run), most=most)
    stacks = [stack for stack in (run.stack.encoder, run.stack.decoder) if stack]
    heads = sum(attention.num_heads for stack in stacks for block in stack.blocks for attention in block.attentions)
    count = next(iter(inputs.values())).shape[1]
    say(f"where every head looks, on {count:,} tokens")
    began = time.perf_counter()
    so_far = HeadsFound(found, importance, removable, NotMeasured(""), 0.0)
    shape = fit(heads, two_sided=run.stack.encoder is not None, beside_bytes=_page_bytes(so_far, texts))
    maps = head_maps(run.loaded.model, inputs, shape=shape)
    seconds = time.perf_counter() - began
    return MapsFound("", count, maps.heads, shape.rows, shape.keys, shape.blocks, seconds, maps, texts)


def _page_bytes(found: HeadsFound, texts: Mapping[str, Sequence[str]]) -> int:
    """Bytes of the page of an x-ray without its maps."""
    drawn = sum(len(widget.markup.encode()) for widget in grids(found))
    return _REST_BYTES + drawn + len(encode(as_json(found), compact=True)) + len(embedded(texts))
