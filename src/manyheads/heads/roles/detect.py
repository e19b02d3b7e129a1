"""What each head does: detectors, each with a control, an interval, and a verdict corrected for the number of tests.

    report = head_roles(model, tokenizer, texts=[text])
    report.label(Head(17, 3))          # "induction"; "" where no role beats its control
    report.clearest("induction")       # the heads that have the role, the clearest first

Choices (the best offset, the direction, which head is shown first) are made on one half of the windows or sentences, and all
figures are of the other. All heads are tested for all roles, and a verdict holds where its false discovery rate over all of
these tests is at most `fdr`, the score is at least `least_effect` above each control, and any criterion of the role is met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head, OneHead, address, format_head
from manyheads.heads.alignment import Frame, frame
from manyheads.heads.batches import longest_text
from manyheads.heads.left_out import LeftOut, present
from manyheads.heads.roles.conllu import Sentence, read_conllu
from manyheads.heads.roles.coreference import KINDS, coreference_scores
from manyheads.heads.roles.evidence import (
    HOLDS,
    LEAST_EFFECT,
    SINK,
    Evidence,
    Role,
    beside,
    corrected,
    from_units,
    weaker,
)
from manyheads.heads.roles.induction import induction_scores
from manyheads.heads.roles.syntax import DIRECTIONS, LEAST_INSTANCES, RelationScores, collect, judge, too_rare
from manyheads.heads.roles.text_roles import POSITIONAL_SHARE, WINDOW_TOKENS, WITHOUT, cut, text_roles, unread
from manyheads.models.scoring import token_ids
from manyheads.quoting import shown

__all__ = ["POSITIONAL_SHARE", "Role", "RoleReport", "head_roles"]

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class RoleReport:
    """The roles of all heads of a model.

    evidence     one entry a role that could be tested; `not_tested`: (role, why) for the others
    fdr, tests   the false discovery rate of the verdicts, and over how many tests
    least_effect how far above its control a score must be
    bos          what stood before and after the texts, and who decided it
    windows, window_tokens   how the texts were cut
    left_out     what was given and not used, and why
    """

    evidence: tuple[Evidence, ...]
    not_tested: tuple[tuple[str, str], ...]
    fdr: float
    least_effect: float
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
            raise ManyheadsError(f"{shown(name)} is no role that was tested; tested: {known}")
        holding = [role for role in map(one.role, one.ranked()) if role.verdict == HOLDS]
        return tuple(holding[:most] if most else holding)


def head_roles(
    model: Any,
    tokenizer: Any,
    *,
    texts: Sequence[str] | str,
    conllu: str | Sequence[Sentence] | None = None,
    seed: int = 0,
    bos: bool | None = None,
    fdr: float = 0.05,
    least_effect: float = LEAST_EFFECT,
    say: Say = lambda _: None,
) -> RoleReport:
    """Test every head of `model` for every role.

    texts    ordinary text, at least two tokens of it; a few thousand are wanted
    conllu   a CoNLL-U file, or its sentences, for the syntactic roles; without it they are not tested
    bos      whether a beginning-of-text token stands before each window; None: as the tokenizer does. Recorded in `bos`
    fdr      the false discovery rate of the verdicts
    least_effect   how far above its control a score must be besides, a share; with many windows a hair is significant
    say      is told what is being done

    Raises ManyheadsError, one line: no tokenizer, less than two tokens of text, a model that takes no text, broken CoNLL-U;
    BackendError where the attention of the model does not pass through the door.
    """
    if not 0 < fdr < 1:
        raise ManyheadsError(f"a false discovery rate of {fdr} was asked for; valid: between 0 and 1, such as 0.05")
    if not 0 <= least_effect < 1:
        raise ManyheadsError(
            f"a least effect of {least_effect} was asked for; valid: a share from 0 to below 1, such as 0.1"
        )
    around = frame(tokenizer, bos=bos)
    given = [texts] if isinstance(texts, str) else list(texts)
    if not given:
        raise ManyheadsError("no text was given; at least 2 tokens are needed")
    ids = [
        token for number, text in enumerate(given, 1) for token in token_ids(tokenizer, text, named=f"text {number}")
    ]
    sentences = read_conllu(conllu) if isinstance(conllu, str) else conllu
    windows, width = cut(ids, longest_text(model, WINDOW_TOKENS + len(around.before) + len(around.after)), around)
    say(f"roles: {len(windows)} windows of {width} tokens")
    found, not_tested = text_roles(model, tokenizer, ids=ids, windows=windows, around=around, seed=seed)
    say("roles: induction, on blocks of random tokens")
    heads, scores = induction_scores(model, tokenizer, around=around, seed=seed)
    found.append(from_units("induction", heads, scores, seed=seed, what="attention to the token after one's like",
                            control="two different blocks"))  # fmt: skip
    say("roles: coreference, on template sentences")
    coreferent, unheard = _coreference(model, tokenizer, around=around, seed=seed)
    found.append(coreferent)
    left_out = (
        *unread(ids, windows, width),
        *unheard,
        *_syntactic(found, not_tested, model, tokenizer, sentences=sentences, around=around, say=say),
    )
    kept = tuple(one for one in found if not np.isnan(one.p_value).all())
    not_tested += [(one.name, WITHOUT.get(one.name, "no text here asks for it")) for one in found if one not in kept]
    evidence, tests = corrected(kept, fdr=fdr, least_effect=least_effect)
    return RoleReport(
        evidence, tuple(not_tested), fdr, least_effect, tests, around.said, seed, len(windows), width, left_out
    )


def _coreference(
    model: Any, tokenizer: Any, *, around: Frame, seed: int
) -> tuple[Evidence, tuple[LeftOut, ...]]:  # fmt: skip
    """Coreference, which must show in each kind of pronouns; the templates that could not be read."""
    what, control = "attention from a pronoun to its antecedent", "the distractor"
    heads, scores = coreference_scores(model, tokenizer, around=around)
    kinds = {
        kind: from_units("coreference", heads, scores[:, at], seed=seed, what=what, control=control)
        for at, kind in enumerate(KINDS)
    }
    unread = np.isnan(scores).all(axis=(2, 3))
    why = "longer than the model reads, or with a word that the tokenizer makes no piece of"
    said = f"{what}; of {' and '.join(KINDS)} the pair that shows less"
    return (
        weaker("coreference", kinds, what=said, control=control),
        present(LeftOut("sets of coreference sentences", int(unread.sum()), unread.size, why)),
    )


def _syntactic(
    found: list[Evidence], not_tested: list[tuple[str, str]], model: Any, tokenizer: Any, *,
    sentences: Sequence[Sentence] | None, around: Frame, say: Say,
) -> tuple[LeftOut, ...]:  # fmt: skip
    """The roles that sentences with gold heads show; what of these was left out."""
    if sentences is None:
        not_tested.append(("syntax", "needs sentences with gold heads: conllu="))
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
