"""How many heads AntiBERTy can lose, by which order they are taken in; writes docs/pruning-curve.md and .svg.

    python benchmarks/pruning_curve.py [--threads N] [--steps N] [--no-gates]

Heads are ranked on the chains of two antibodies and taken away (their output is zero) on three others, where every
residue is hidden once, a sixth of them at a time, and guessed. Orders: by the first-order score (as it is, and after each
layer's scores are divided by their norm), by what taking each head alone costs, and at random; and by first-order
scores that are taken anew as heads go. Gates are trained on the
same two antibodies and judged on the others too.
"""

from __future__ import annotations

import argparse
import datetime
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

import antibodies
from held import machine, table
from manyheads.heads.address import Head, format_head
from manyheads.heads.effects import Importance, ablated, head_importance, rank_correlation, removal_curve
from manyheads.heads.gates import QUADRANTS, Gates, quadrants, train_gates
from manyheads.report.plot import Plot, Series
from manyheads.report.svg import render_svg

PAGE = Path(__file__).parents[1] / "docs" / "pruning-curve.md"
RANKED = ("trastuzumab", "adalimumab")
JUDGED = ("nivolumab", "rituximab", "cetuximab")
COUNTS = (0, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64)
SHOWN = 48  # heads taken away, at most, in the picture
RANDOM = 3
ROUND = 8  # heads that go before scores are taken anew
PENALTY = 0.005  # nats a residue that an open head costs
METHODS = ("first-order", "zero", "mean")


def say(text: str) -> None:
    """Progress."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def batches(names: tuple[str, ...], words: dict[str, int]) -> list[dict[str, torch.Tensor]]:
    """One for each chain."""
    return [antibodies.hidden(chain, words) for name in names for chain in antibodies.ANTIBODIES[name]]


def asked_again(model: Any, texts: list[Any]) -> tuple[Head, ...]:
    """Heads by their first-order scores, layers normalised, the scores taken anew after each eight that went."""
    order: list[Head] = []
    while True:
        with ablated(model, order):
            left = [head for head in head_importance(model, texts).ranking(by_layer=True) if head not in order]
        if not left:
            return tuple(order)
        order += left[:ROUND]


def orders(model: Any, texts: list[Any], found: dict[str, Importance], seeds: int) -> dict[str, list[tuple[Head, ...]]]:
    """Heads in the order in which they go, by the name of the order; several for chance."""
    heads = list(found["zero"].heads())
    shuffled = [tuple(random.Random(seed).sample(heads, len(heads))) for seed in range(seeds)]  # noqa: S311  no secret
    return {
        "first-order score": [found["first-order"].ranking()],
        "first-order score, layers normalised": [found["first-order"].ranking(by_layer=True)],
        f"normalised, asked again every {ROUND}": [asked_again(model, texts)],
        "zero ablation of each": [found["zero"].ranking()],
        f"random, mean of {seeds}": shuffled,
    }


def accuracy(model: Any, texts: list[Any], order: tuple[Head, ...], counts: tuple[int, ...]) -> tuple[float, ...]:
    """The share of residues that is guessed right, for each number of heads taken away."""
    curve = removal_curve(model, texts, order, counts=counts, metric=antibodies.wrong)
    return tuple(1 - value for value in curve.values)


def curves(
    model: Any, texts: list[Any], asked: dict[str, list[tuple[Head, ...]]]
) -> dict[str, list[tuple[float, ...]]]:
    """By the name of the order: one curve for each order of that name."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for name, ways in asked.items():
        found[name] = []
        for way in ways:
            found[name].append(accuracy(model, texts, way, COUNTS))
            say(f"{name}: {' '.join(f'{value:.3f}' for value in found[name][-1])}")
    return found


def mean(lines: list[tuple[float, ...]]) -> tuple[float, ...]:
    """The mean of several curves."""
    return tuple(sum(values) / len(values) for values in zip(*lines, strict=True))


def picture(found: dict[str, list[tuple[float, ...]]]) -> str:
    """The curves as SVG, up to 48 heads: without any head all are equal, and their names could not be told apart."""
    shown = [place for place, count in enumerate(COUNTS) if count <= SHOWN]
    short = ("first-order", "by layer", "asked again", "ablation", "random")
    series = tuple(
        Series(name, label, tuple(mean(lines)[place] for place in shown))
        for (name, lines), label in zip(found.items(), short, strict=True)
    )
    title = "Residues of antibodies that AntiBERTy guesses right, against heads taken away"
    says = f"Five orders of removal, up to {SHOWN} of 64 heads"
    counts = tuple(COUNTS[place] for place in shown)
    drawn = render_svg(Plot(title, says, "heads taken away, of 64", "guessed right", counts, series, unit="share"))
    assert drawn is not None
    return drawn


def curve_table(found: dict[str, list[tuple[float, ...]]]) -> str:
    """Accuracy by heads taken away; for chance the mean, and the worst and best."""
    rows = []
    for place, count in enumerate(COUNTS):
        cells = [str(count)]
        for lines in found.values():
            values = [line[place] for line in lines]
            spread = f" ({100 * min(values):.1f} to {100 * max(values):.1f})" if len(values) > 1 else ""
            cells.append(f"{100 * sum(values) / len(values):.1f}%{spread}")
        rows.append(cells)
    return table(["heads taken away", *found], rows, words=0)


def verdict(found: dict[str, list[tuple[float, ...]]], residues: int) -> str:
    """What the table says, by its own numbers: which orders beat the best of chance, at half of the heads."""
    place = COUNTS.index(32)
    chance = next(lines for name, lines in found.items() if name.startswith("random"))
    worst, best = (100 * bound(line[place] for line in chance) for bound in (min, max))
    said = []
    for name, lines in found.items():
        if lines is not chance:
            value = 100 * lines[0][place]
            how = "above" if value > best else "below" if value < worst else "within"
            said.append(f"{name} {value:.1f}%, {how} them")
    middle = (worst + best) / 200
    error = 100 * (middle * (1 - middle) / residues) ** 0.5
    return (
        f"With half of the heads gone, chance leaves {worst:.1f}% to {best:.1f}% over {len(chance)} draws: {'; '.join(said)}.\n"
        f"{residues} residues leave a standard error of {error:.1f} points, so that differences of a few points say nothing."
    )


def agreement(found: dict[str, Importance]) -> str:
    """Spearman's coefficient between each two measures."""
    rows = [
        [one, *(f"{rank_correlation(found[one], found[other]):.2f}" if other != one else "" for other in METHODS)]
        for one in METHODS
    ]
    return table(["measure", *METHODS], rows, words=1)


def extremes(found: dict[str, Importance]) -> str:
    """The heads that matter most and least when taken alone, by all measures."""
    order = found["zero"].ranking()
    rows = [
        [format_head(head, short=True), *(f"{found[method].score(head):+.4f}" for method in METHODS)]
        for head in (*reversed(order[-5:]), *reversed(order[:5]))
    ]
    return table(["head", *METHODS], rows, words=1)


def gate_section(gates: Gates, found: Importance, right: tuple[float, ...], against: tuple[float, ...]) -> str:
    """What the gates kept, and whether they had come to rest."""
    four = Counter(quadrants(gates, found).values())
    rows = [[name, str(four[name])] for name in QUADRANTS]
    closed = len(gates.closed())
    return f"""## What do gates keep?

Hard-concrete gates (`docs/head-gates.md`), trained on the weights as they are, {len(gates.losses)} steps at {PENALTY} nats a
head, closed {closed} of {closed + len(gates.kept())} heads. {gates.convergence.text[:1].upper()}{gates.convergence.text[1:]}.

On the two antibodies that they were trained on the loss went from {gates.baseline:.4f} to {gates.loss_without:.4f} nats with
the closed heads taken away; on the others {100 * right[1]:.1f}% of the residues are guessed right (all heads:
{100 * right[0]:.1f}%). As many heads in the order of zero ablation leave {100 * against[0]:.1f}%, in that of the first-order score
{100 * against[1]:.1f}%.

A head is *kept* when its gate is open, and *needed* when taking it alone from the whole model costs more than {PENALTY} nats:

{table(["quadrant", "heads"], rows, words=1)}
"""


def page(
    found: dict[str, Importance], lines: dict[str, list[tuple[float, ...]]], gates: str, residues: int, minutes: float
) -> str:
    """The whole page."""
    return f"""# What AntiBERTy loses with its heads

AntiBERTy is a BERT for antibodies, 8 layers of 8 heads. Residues of an antibody are hidden and the model guesses them, which
is a task with a right answer that needs no corpus. Heads are ranked on {", ".join(RANKED)} and taken away on {", ".join(JUDGED)}
({residues} residues, each hidden once, a sixth at a time). The page is written by

    python benchmarks/pruning_curve.py

Last written on {datetime.datetime.now(datetime.UTC):%Y-%m-%d} in {minutes:.0f} minutes on {machine()};
torch {torch.__version__}, transformers {transformers.__version__}.

## How many heads can go, and in which order?

![Residues guessed right against heads taken away](pruning-curve.svg)

Taken away means that a head's output is zero, all of them at once; nothing is trained in between.

{curve_table(lines)}

The first-order score is the mean over sequences of |dL/dg|, g a factor on the head's output (Michel et al., arXiv 1905.10650);
"layers normalised" divides the scores of each layer by their Euclidean norm, as that paper does. "Zero ablation" ranks heads by
what the loss rises by when each is taken away alone. Only scores that are asked again see what heads do for one another.

{verdict(lines, residues)}

## Do the measures agree?

Spearman's rank correlation over the 64 heads, on the two antibodies that ranked them:

{agreement(found)}

The five heads that matter most when taken alone, and the five that matter least (the loss's rise in nats; for first-order the
size of the slope, which has no sign):

{extremes(found)}

{gates}"""


def main() -> None:
    """Measures, then writes both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=400, help="steps of the gates' training")
    parser.add_argument("--no-gates", action="store_true", help="leave the gates out")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    transformers.logging.set_verbosity_error()
    began = time.perf_counter()
    model, words = antibodies.load(), antibodies.vocabulary()
    ranked, judged = batches(RANKED, words), batches(JUDGED, words)
    found = {}
    for method in METHODS:
        found[method] = head_importance(model, ranked, method=method)
        say(f"{method}: {found[method].seconds:.0f} s")
    lines = curves(model, judged, orders(model, ranked, found, RANDOM))
    gates = "" if asked.no_gates else with_gates(model, ranked, judged, found, asked.steps)
    residues = sum(int((batch["labels"] != -100).sum()) for batch in judged)
    text = page(found, lines, gates, residues, (time.perf_counter() - began) / 60)
    PAGE.write_text(text)
    PAGE.with_suffix(".svg").write_text(picture(lines))


def with_gates(model: Any, ranked: list[Any], judged: list[Any], found: dict[str, Importance], steps: int) -> str:
    """Trains the gates and judges what they closed against the two orders at the same number of heads."""
    gates = train_gates(
        model,
        ranked,
        penalty=PENALTY,
        steps=steps,
        say=lambda done, _: say(f"gates: {done}") if done % 50 == 0 else None,
    )
    say(f"gates: {gates.convergence.text}")
    closed = gates.closed()
    right = accuracy(model, judged, closed, (0, len(closed)))
    against = tuple(
        accuracy(model, judged, found[method].ranking(), (len(closed),))[0] for method in ("zero", "first-order")
    )
    return gate_section(gates, found["zero"], right, against)


if __name__ == "__main__":
    main()
