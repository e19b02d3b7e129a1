"""What exact ablation of every head costs, against one full forward for each head.

    python benchmarks/exact_ablation.py [--tokens 512] [--how zero] [--threads N] [MODEL]

Measured on SmolLM2-135M (the demo package) unless another model is named. What comes before a head's layer is computed once,
so that about half of the body has to run again for each head, and all of the output layer. A machine's speed drifts over the
minutes that this takes, so full forwards with the loss are timed before, after a quarter, a half and three quarters of the heads
(the clock of the ablation stands still meanwhile), and after it; how far they lie apart is printed. The figures are refused where
the scores of some heads differ from those of full forwards. Exit status 1 where they do, or where the ratio is above 68%.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import torch

from manyheads.heads.effects import (
    METHODS,
    Importance,
    ablate_heads,
    head_importance,
    next_token_loss,
    rank_correlation,
)
from manyheads.models.load.model import hushed, load
from manyheads.models.load.text import shipped_text
from manyheads.models.scoring import token_ids

MOST = 0.68
CHECKED = 6  # heads that are measured by full forwards too
ROUNDS = 5
PAUSES = 3  # between the first and the last head


def forwards(model: Any, ids: torch.Tensor) -> list[float]:
    """Seconds of full forwards with the loss, as each ablation has one."""
    found = []
    with torch.no_grad():
        for _ in range(ROUNDS):
            began = time.perf_counter()
            next_token_loss(model(input_ids=ids, use_cache=False), {"input_ids": ids})
            found.append(time.perf_counter() - began)
    return found


class Pauses:
    """Full forwards in the middle of an ablation, at equal numbers of heads, and how long they held it up.

    They run on a second set of modules with the same weights, since the blocks of the first are skipped meanwhile.
    """

    def __init__(self, model: Any, ids: torch.Tensor) -> None:
        self._twin = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
        self._ids = ids
        self.times: list[list[float]] = []
        self.seconds = 0.0

    def __call__(self, done: int, total: int) -> None:
        if len(self.times) < PAUSES and done == total * (len(self.times) + 1) // (PAUSES + 1):
            began = time.perf_counter()
            self.times.append(forwards(self._twin, self._ids))
            self.seconds += time.perf_counter() - began


def check(model: Any, ids: torch.Tensor, found: Importance) -> float:
    """The largest difference from full forwards, over some heads."""
    heads = random.Random(0).sample(list(found.heads()), CHECKED)  # noqa: S311  no secret
    plain = ablate_heads(model, [ids], how=found.method, heads=heads, reuse=False)
    return max(abs(found.score(head) - plain.score(head)) for head in heads)


def told(found: Importance, spent: float, rounds: list[list[float]], how: str) -> float:
    """Prints what was timed and returns the share of a full forward that a head takes."""
    every = [seconds for each in rounds for seconds in each]
    middles = [statistics.median(each) for each in rounds]
    heads, forward = len(found.heads()), statistics.median(every)
    print(
        f"a full forward with its loss: {forward:.3f} s (median of {len(every)}, {min(every):.3f} to {max(every):.3f}); "
        f"before, on the way and after: {', '.join(f'{middle:.3f}' for middle in middles)} s"
    )
    print(
        f"all heads, {how} ablation: {spent:.1f} s, {spent / (heads * forward):.1%} of a full forward a head (at most "
        f"{MOST:.0%}; {spent / (heads * max(middles)):.1%} to {spent / (heads * min(middles)):.1%} by the slowest and the "
        "quickest of these)"
    )
    return spent / (heads * forward)


def main() -> int:
    """Prints the ratio, and how the first-order scores agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a folder or GGUF file with a causal language model")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--how", choices=METHODS[:2], default="zero")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with hushed():
        loaded = load(asked.model or "demo")
    ids = torch.tensor([token_ids(loaded.tokenizer, shipped_text().text, most=asked.tokens)])
    pauses = Pauses(loaded.model, ids)
    before = forwards(loaded.model, ids)
    found = ablate_heads(loaded.model, [ids], how=asked.how, say=pauses)
    after = forwards(loaded.model, ids)
    difference = check(loaded.model, ids, found)
    if difference > 1e-5 or not found.reused:
        print(f"refused: scores differ from full forwards by {difference:.1e} nats (prefix reused: {found.reused})")
        return 1
    first = head_importance(loaded.model, [ids])
    slopes = replace(first, scores=-first.slopes)
    print(
        f"{len(found.heads())} heads, {ids.shape[1]} tokens, {asked.threads} threads; "
        f"scores as by full forwards within {difference:.0e} nats"
    )
    ratio = told(found, found.seconds - pauses.seconds, [before, *pauses.times, after], asked.how)
    print(
        f"first-order scores of all: {first.seconds:.2f} s, {first.seconds / statistics.median(after):.1f} forwards; rank correlation with "
        f"the ablation {rank_correlation(first, found):.2f}, with its size "
        f"{rank_correlation(first, replace(found, scores=found.scores.abs())):.2f}, "
        f"of signed slopes with it {rank_correlation(slopes, found):.2f}"
    )
    return 0 if ratio <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
