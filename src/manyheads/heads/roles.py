"""What each head does: detectors, each with a control, an interval, and a verdict corrected for the number of tests.

    report = roles(model, tokenizer, texts=[text])
    report.label(Head(17, 3))          # "induction"; "" where no role beats its control
    report.clearest("induction")       # the heads that have the role, the clearest first

Choices (the best offset, the direction, which head is shown first) are made on one half of the windows or sentences, and all
figures are of the other. All heads are tested for all roles, and a verdict holds where its false discovery rate over all of
these tests is at most `fdr`, the score is at least 0.1 above the control, and any criterion of the role is met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head, OneHead, address, format_head
from manyheads.heads.alignment import Frame, frame
from manyheads.heads.conllu import Sentence, read_conllu
from manyheads.heads.coreference import coreference
from manyheads.heads.detectors import FARTHEST, TEXT_MEASURES, measure_text, vocabulary
from manyheads.heads.evidence import HOLDS, Evidence, Role, beside, corrected, from_units
from manyheads.heads.induction import induction
from manyheads.heads.left_out import LeftOut, present
from manyheads.heads.significance import unit_mean
from manyheads.heads.syntax import DIRECTIONS, LEAST_INSTANCES, RelationScores, collect, judge, too_rare
from manyheads.heads.watching import Batch, longest_text, watch
from manyheads.models.scoring import token_ids
from manyheads.report.jsonform import finite

__all__ = ["POSITIONAL_SHARE", "Role", "RoleReport", "roles"]

POSITIONAL_SHARE = 0.9
"""Voita et al. call a head positional where one offset has the largest weight in this share of cases (facts.md A47)."""
SINK = "first token"
WINDOW_TOKENS = 128
MOST_WINDOWS = 24
LEAST_WINDOWS = 8
_SHORTEST_WINDOW = 16
_AT_ONCE = 4

_WITHOUT = {
    "next token": "no head of this model sees the token after: its attention is causal",
    "delimiter": "no token of the text is a delimiter",
    "rare token": "every token of the text comes more than once",
    "duplicate token": "no token of a window comes twice",
}
"""Why a role could not be tested in any head."""

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class RoleReport:
    """The roles of all heads of a model.

    evidence     one entry a role that could be tested; `not_tested`: (role, why) for the others
    fdr, tests   the false discovery rate of the verdicts, and over how many tests
    bos          what stood before and after the texts, and who decided it
    windows, window_tokens   how the texts were cut
    left_out     what was given and not used, and why
    """

    evidence: tuple[Evidence, ...]
    not_tested: tuple[tuple[str, str], ...]
    fdr: float
    tests: int
    bos: str
    seed: int
    windows: int
    window_tokens: int
    left_out: tuple[LeftOut, ...] = ()

    def of(self, head: OneHead) -> tuple[Role, ...]:
        """All that was tested about one head, as "3:1" or Head(3, 1), the largest effect first; ManyheadsError for a head that
        is not there.
        """
        head = address(head)
        found = [one.role(one.heads.index(head)) for one in self.evidence if head in one.heads]
        if not found:
            raise ManyheadsError(f"{format_head(head)}: no role was tested for a head of that address")
        return tuple(sorted(found, key=lambda role: (np.isnan(role.effect), -role.effect)))

    def label(self, head: OneHead) -> str:
        """The role that holds with the largest effect; the sink only where nothing else does; "" for none.

        ManyheadsError for a head that is not there.
        """
        head = address(head)
        found = self.labels().get(head)
        if found is None:
            raise ManyheadsError(f"{format_head(head)}: no role was tested for a head of that address")
        return found

    def labels(self) -> dict[Head, str]:
        """`label` of every head that was tested for anything."""
        best: dict[Head, tuple[bool, float]] = {head: (False, 0.0) for one in self.evidence for head in one.heads}
        names = dict.fromkeys(best, "")
        for one in self.evidence:
            for head, holds, effect in zip(one.heads, one.holds, one.effect, strict=True):
                rank = (one.name != SINK, float(effect))
                if holds and (not names[head] or rank > best[head]):
                    best[head], names[head] = rank, one.name
        return names

    def clearest(self, name: str, *, most: int = 0) -> tuple[Role, ...]:
        """The heads that have a role, the clearest first as chosen on the other half; the first `most` of them (0: all)."""
        one = next((one for one in self.evidence if one.name == name), None)
        if one is None:
            known = ", ".join(one.name for one in self.evidence)
            raise ManyheadsError(f"{name!r} is no role that was tested; tested: {known}")
        holding = [role for role in map(one.role, one.ranked()) if role.verdict == HOLDS]
        return tuple(holding[:most] if most else holding)

    def as_json(self) -> dict[str, Any]:
        """Everything, for JSON: NaN becomes null, heads become addresses."""
        return {
            "fdr": self.fdr, "tests": self.tests, "bos": self.bos, "seed": self.seed, "windows": self.windows,
            "window_tokens": self.window_tokens,
            "not_tested": [{"role": name, "why": why} for name, why in self.not_tested],
            "left_out": [one.as_json() for one in self.left_out],
            "labels": {format_head(head): label for head, label in self.labels().items() if label},
            "roles": [_evidence_json(one) for one in self.evidence],
        }  # fmt: skip


def _evidence_json(one: Evidence) -> dict[str, Any]:
    rows = []
    for at in range(len(one.heads)):
        role = one.role(at)
        figures = {
            name: finite(getattr(role, name))
            for name in ("chosen", "score", "null", "low", "high", "p_value", "q_value")
        }
        ahead = finite(float(one.ahead[at]))
        rows.append(
            {"head": format_head(role.head), "ahead": ahead, **figures, "detail": role.detail, "verdict": role.verdict}
        )
    return {"role": one.name, "score_is": one.what, "control": one.control, "units": one.units, "heads": rows}


def roles(
    model: Any,
    tokenizer: Any,
    *,
    texts: Sequence[str] | str,
    conllu: str | Sequence[Sentence] | None = None,
    seed: int = 0,
    bos: bool | None = None,
    fdr: float = 0.05,
    say: Say = lambda _: None,
) -> RoleReport:
    """Test every head of `model` for every role.

    texts    ordinary text, at least two tokens of it; a few thousand are wanted
    conllu   a CoNLL-U file, or its sentences, for the syntactic roles; without it they are not tested
    bos      whether a beginning-of-text token stands before each window; None: as the tokenizer does. Recorded in `bos`
    fdr      the false discovery rate of the verdicts
    say      is told what is being done

    Raises ManyheadsError, one line: no tokenizer, less than two tokens of text, a model that takes no text, broken CoNLL-U;
    BackendError where the attention of the model does not pass through the door.
    """
    if not 0 < fdr < 1:
        raise ManyheadsError(f"a false discovery rate of {fdr} was asked for; valid: between 0 and 1, such as 0.05")
    around = frame(tokenizer, bos=bos)
    given = [texts] if isinstance(texts, str) else list(texts)
    if not given:
        raise ManyheadsError("no text was given; at least 2 tokens are needed")
    ids = [
        token for number, text in enumerate(given, 1) for token in token_ids(tokenizer, text, named=f"text {number}")
    ]
    sentences = read_conllu(conllu) if isinstance(conllu, str) else conllu
    windows, width = _windows(ids, longest_text(model, WINDOW_TOKENS + len(around.before) + len(around.after)), around)
    found: list[Evidence] = []
    not_tested: list[tuple[str, str]] = []
    say(f"roles: {len(windows)} windows of {width} tokens")
    _text_roles(found, not_tested, model, tokenizer, ids=ids, windows=windows, around=around, seed=seed)
    say("roles: induction, on blocks of random tokens")
    heads, scores = induction(model, tokenizer, around=around, seed=seed)
    found.append(from_units("induction", heads, scores, seed=seed, what="attention to the token after one's like",
                            control="two different blocks"))  # fmt: skip
    say("roles: coreference, on template sentences")
    heads, scores = coreference(model, tokenizer, around=around)
    found.append(from_units("coreference", heads, scores, seed=seed, what="attention from a pronoun to its antecedent",
                            control="the distractor"))  # fmt: skip
    left_out = (
        *_unread(ids, windows, width),
        *_syntactic(found, not_tested, model, tokenizer, sentences=sentences, around=around, say=say),
    )
    kept = tuple(one for one in found if not np.isnan(one.p_value).all())
    not_tested += [(one.name, _WITHOUT.get(one.name, "no text here asks for it")) for one in found if one not in kept]
    evidence, tests = corrected(kept, fdr=fdr)
    return RoleReport(evidence, tuple(not_tested), fdr, tests, around.said, seed, len(windows), width, left_out)


def _windows(ids: Sequence[int], longest: int, around: Frame) -> tuple[list[list[int]], int]:
    """Windows of the text that do not overlap, spread over all of it; shorter ones where there is little text."""
    room = longest - len(around.before) - len(around.after)
    width = max(2, min(WINDOW_TOKENS, room, max(_SHORTEST_WINDOW, len(ids) // (2 * LEAST_WINDOWS)), len(ids)))
    count = len(ids) // width
    if count > MOST_WINDOWS:
        starts = [number * (len(ids) - width) // (MOST_WINDOWS - 1) for number in range(MOST_WINDOWS)]
    else:
        starts = [number * width for number in range(count)]
    return [list(ids[start : start + width]) for start in starts], width


def _unread(ids: Sequence[int], windows: Sequence[Sequence[int]], width: int) -> tuple[LeftOut, ...]:
    why = f"roles of ordinary text are told from at most {MOST_WINDOWS} windows of {width} tokens, spread over it"
    return present(LeftOut("tokens", len(ids) - len(windows) * width, len(ids), why))


def _text_roles(
    found: list[Evidence], not_tested: list[tuple[str, str]], model: Any, tokenizer: Any, *, ids: Sequence[int],
    windows: Sequence[Sequence[int]], around: Frame, seed: int,
) -> None:  # fmt: skip
    """The roles that ordinary text shows."""
    if len(windows) < LEAST_WINDOWS:
        why = (
            f"the text gives {len(windows)} windows of {len(windows[0])} tokens; expected at least {LEAST_WINDOWS} of "
            f"{_SHORTEST_WINDOW}, half of them to choose on and half to score"
        )
        not_tested += [(name, why) for name in ("previous token", "next token", "itself", "fixed offset", "positional",
                                                SINK, "delimiter", "rare token", "duplicate token")]  # fmt: skip
        return
    words = vocabulary(tokenizer, ids, marks=around.after)
    start = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
    batches = []
    for at in range(0, len(windows), _AT_ONCE):
        part = windows[at : at + _AT_ONCE]
        rows = torch.tensor([[*around.before, *window, *around.after] for window in part])
        targets = torch.tensor([[start, *window] for window in part]) if isinstance(start, int) else None
        batches.append(Batch(rows, targets))
    content = slice(len(around.before), len(around.before) + len(windows[0]))
    heads, scores = watch(model, batches, lambda look, _: measure_text(look, words=words, rows=content))
    found += _position_roles(heads, scores, seed=seed)
    others = {
        SINK: ("attention to the first token", "the second token"),
        "delimiter": ("attention to punctuation, line ends and separators", "as many random keys"),
        "rare token": ("attention to tokens that come once in the text", "as many random keys"),
        "duplicate token": (
            "attention to other places of the same token",
            "what other queries give these keys, or an even spread",
        ),
    }
    for name, (what, control) in others.items():
        values = scores[:, :, TEXT_MEASURES.index(name)]
        found.append(from_units(name, heads, values, seed=seed, what=what, control=control))


def _position_roles(heads: tuple[Head, ...], scores: np.ndarray, *, seed: int) -> list[Evidence]:
    """Roles of position, from `scores` (windows, heads, measures, 2); the offset is chosen on the even windows."""
    others = "what other queries give these keys, or an even spread"
    made = [
        from_units(name, heads, scores[:, :, TEXT_MEASURES.index(f"mass {offset:+d}")], seed=seed, control=others,
                   what=f"attention to {what}")
        for name, offset, what in (("previous token", -1, "the token before"), ("next token", 1, "the token after"),
                                   ("itself", 0, "the query's own token"))
    ]  # fmt: skip
    far = [offset for offset in range(-FARTHEST, FARTHEST + 1) if abs(offset) >= 2]
    values, detail = _best_offset(scores, "mass", far)
    made.append(from_units("fixed offset", heads, values, seed=seed, detail=detail, control=others,
                           what=f"attention to the token at one distance, 2 to {FARTHEST} away"))  # fmt: skip
    values, detail = _best_offset(scores, "peak", [offset for offset in range(-FARTHEST, FARTHEST + 1) if offset])
    made.append(from_units(
        "positional", heads, values, seed=seed, detail=detail, control="how often these keys have the largest weight of other queries",
        what=f"queries whose largest weight is at one distance; at least {POSITIONAL_SHARE:.0%} (Voita et al. 2019)",
        least_score=POSITIONAL_SHARE,
    ))  # fmt: skip
    return made


def _best_offset(scores: np.ndarray, kind: str, offsets: Sequence[int]) -> tuple[np.ndarray, list[str]]:
    """Of each head the offset with the highest score on the even windows: its values (windows, heads, 2), its name."""
    of_each = scores[:, :, [TEXT_MEASURES.index(f"{kind} {offset:+d}") for offset in offsets]]
    chosen = unit_mean(of_each[0::2, :, :, 0])
    best = np.where(np.isnan(chosen), -np.inf, chosen).argmax(1)
    heads = np.arange(of_each.shape[1])
    return of_each[:, heads, best], [beside(offsets[at]) for at in best]


def _syntactic(
    found: list[Evidence], not_tested: list[tuple[str, str]], model: Any, tokenizer: Any, *,
    sentences: Sequence[Sentence] | None, around: Frame, say: Say,
) -> tuple[LeftOut, ...]:  # fmt: skip
    """The roles that sentences with gold heads show; what of these was left out."""
    if sentences is None:
        not_tested.append(("syntax", "needs sentences with gold heads: --conllu"))
        return ()
    say(f"roles: syntax, on {len(sentences)} sentences")
    hits = collect(model, tokenizer, sentences, around=around)
    judged = judge(hits, chosen_on=range(0, len(sentences), 2), scored_on=range(1, len(sentences), 2))
    if not judged:
        not_tested.append(("syntax", f"no relation has 20 instances in each half of the {len(sentences)} sentences"))
    else:
        why = f"fewer than {LEAST_INSTANCES} instances in one half of the sentences, or in both"
        not_tested += [(f"syntax: {relation}", why) for relation in too_rare(hits, judged)]
    found += [_relation(hits.heads, one) for one in judged]
    return hits.left_out


def _relation(heads: tuple[Head, ...], one: RelationScores) -> Evidence:
    detail = [
        f"{DIRECTIONS[direction]}; against a governor {beside(one.offset[direction])}" for direction in one.direction
    ]
    return Evidence(
        f"syntax: {one.relation}", "words whose most attended word is the other end of the relation",
        "the best fixed offset", heads, tuple(detail), one.chosen, one.score, one.null, one.low, one.high, one.p_value,
        np.full(len(heads), np.nan), max(one.instances), chosen_null=one.chosen_control,
    )  # fmt: skip
