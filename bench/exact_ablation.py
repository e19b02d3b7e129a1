"""What exact ablation of every head costs, against one full forward for each head.

    python bench/exact_ablation.py [--tokens 512] [--how zero] [--threads N] [MODEL]

Measured on SmolLM2-135M (the demo package) unless another model is named. What comes before a head's layer is computed once,
so that about half of the body has to run again for each head, and all of the output layer. Full forwards with the loss are timed
before and after, and the figures are refused where the scores of some heads differ from those of full forwards. Exit status 1
where they do, or where the ratio is above 68%.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import torch

from manyheads.checkpoints import open_model
from manyheads.checkpoints.locate import locate
from manyheads.heads.ablation import METHODS, ablation
from manyheads.heads.importance import Importance, importance, rank_correlation
from manyheads.heads.metrics import next_token_loss
from manyheads.models.load import demo_model, hushed, load_model
from manyheads.models.reading import shipped_text
from manyheads.models.scoring import token_ids

MOST = 0.68
CHECKED = 6  # heads that are measured by full forwards too
ROUNDS = 5


def forwards(model: Any, ids: torch.Tensor) -> list[float]:
    """Seconds of full forwards with the loss, as each ablation has one."""
    found = []
    with torch.no_grad():
        for _ in range(ROUNDS):
            began = time.perf_counter()
            next_token_loss(model(input_ids=ids, use_cache=False), {"input_ids": ids})
            found.append(time.perf_counter() - began)
    return found


def check(model: Any, ids: torch.Tensor, found: Importance) -> float:
    """The largest difference from full forwards, over some heads."""
    heads = random.Random(0).sample(list(found.heads()), CHECKED)  # noqa: S311  no secret
    plain = ablation(model, [ids], how=found.method, heads=heads, reuse=False)
    return max(abs(found.score(head) - plain.score(head)) for head in heads)


def main() -> int:
    """Prints the ratio, and how the first-order scores agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a folder or GGUF file with a causal language model")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--how", choices=METHODS[:2], default="zero")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    text = asked.model or demo_model()
    located = locate(text)
    with hushed():
        loaded = load_model(located, open_model(text).stack)
    ids = torch.tensor([token_ids(loaded.tokenizer, shipped_text().text, most=asked.tokens)])
    before = forwards(loaded.model, ids)
    found = ablation(loaded.model, [ids], how=asked.how)
    after = forwards(loaded.model, ids)
    difference = check(loaded.model, ids, found)
    if difference > 1e-5 or not found.reused:
        print(f"refused: scores differ from full forwards by {difference:.1e} nats (prefix reused: {found.reused})")
        return 1
    heads, forward = len(found.heads()), statistics.median(before + after)
    ratio = found.seconds / (heads * forward)
    first = importance(loaded.model, [ids])
    slopes = replace(first, scores=-first.slopes)
    print(
        f"{heads} heads, {ids.shape[1]} tokens, {asked.threads} threads; "
        f"scores as by full forwards within {difference:.0e} nats"
    )
    print(f"a full forward with its loss: {forward:.3f} s ({min(before + after):.3f} to {max(before + after):.3f})")
    print(
        f"all heads, {asked.how} ablation: {found.seconds:.1f} s, {ratio:.1%} of a full forward a head (at most {MOST:.0%})"
    )
    print(
        f"first-order scores of all: {first.seconds:.2f} s, {first.seconds / forward:.1f} forwards; rank correlation with "
        f"the ablation {rank_correlation(first, found):.2f}, with its size "
        f"{rank_correlation(first, replace(found, scores=found.scores.abs())):.2f}, "
        f"of signed slopes with it {rank_correlation(slopes, found):.2f}"
    )
    return 0 if ratio <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
