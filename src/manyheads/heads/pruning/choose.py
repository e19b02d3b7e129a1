"""Which heads should go: by a budget and their importance, asked again as heads go, or by gates that were trained.

What is chosen on some text is judged on other text (`heads.pruning.measure_loss_change`). `compare_with_init` does the same to the same architecture
with fresh weights: the experiment that Michel et al. (arXiv 1905.10650) are often said to have run, and did not; they
pruned during training.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from manyheads.checkpoints.pruned import LayerHeads
from manyheads.errors import ConversionError, ManyheadsError
from manyheads.heads.address import Head
from manyheads.heads.batches import BatchLike
from manyheads.heads.effects import Metric
from manyheads.heads.model_spec import Described, describe
from manyheads.heads.progress import Pace
from manyheads.heads.pruning.loss_change import LossChange, measure_loss_change
from manyheads.heads.pruning.plan import main_stack, now_held, stack_name, units
from manyheads.heads.pruning.remove import mask
from manyheads.quoting import shown

__all__ = [
    "Choice",
    "InitComparison",
    "budget_heads",
    "choose_heads",
    "closed_by_gates",
    "compare_with_init",
    "reinitialised",
    "removable_range",
]

_HOW = {
    "first-order": "first-order importance",
    "zero": "ablation to zero",
    "mean": "ablation to the mean",
    "resample": "ablation to another text's output",
}

if TYPE_CHECKING:
    from manyheads.heads.gates import Gates

Batches = Sequence[BatchLike]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """Heads to remove, by their original numbers, and how they were found; `rounds` are the times importance was asked."""

    heads: tuple[Head, ...]
    how: str
    rounds: int


@dataclass(frozen=True)
class InitComparison:
    """Losses with and without heads, of the model and of the same architecture at initialisation.

    same    the same heads taken from the fresh model; own  as many chosen on it in the same way, None where heads were
            named by hand
    """

    trained: LossChange
    same: LossChange
    own: LossChange | None
    seed: int


def budget_heads(text: str, total: int, *, least: int = 1, most: int = 0, what: str = "heads") -> int:
    """The number of heads that "12" or "20%" means of `total`, of which `least` to `most` can go (0: all but one).

    Raises ManyheadsError, one line, for anything else; `what` can go is said there.
    """
    found = re.fullmatch(r"(\d{1,9})(?:\.(\d{1,6}))?\s*(%?)", text.strip())
    if found is None or (found[2] and not found[3]):
        raise ManyheadsError(
            f"budget={shown(text)} is not a number of heads; valid: 12, or a share of them such as 20%"
        )
    if not found[3]:
        heads = int(found[1])
    else:
        digits = found[2] or ""
        heads = int(found[1] + digits) * total // (100 * 10 ** len(digits))
    if not least <= heads <= (most or total - 1):
        more = f"{'' if what == 'heads' else f' in {what}'}: one of each layer stays" if most else ""
        raise ManyheadsError(
            f"budget={shown(text)} is {heads} of {total} heads; expected from {least} to {most or total - 1}{more}"
        )
    return heads


def removable_range(held: Mapping[tuple[str, int], LayerHeads], *, whole_groups: bool = False) -> tuple[int, int, str]:
    """The fewest and the most heads that can go so that one head or group of each attention stays, and in what: "heads" or
    "groups of 3".

    Raises ManyheadsError where no whole group can go.
    """
    sizes = [
        [len(unit) for unit in units({place: each}, whole_groups=whole_groups).values()] for place, each in held.items()
    ]
    smallest = min((size for each in sizes for size in each), default=0)
    most = sum(sum(each) - max(each, default=0) for each in sizes)
    if whole_groups and most < smallest:
        raise ManyheadsError(
            "no whole group can go: one of each layer stays, and no layer has two key/value heads; valid: single heads"
        )
    return smallest, most, f"groups of {smallest}" if whole_groups else "heads"


def choose_heads(
    model: Any, batches: Batches, budget: int, *, method: str = "first-order", whole_groups: bool = False, rounds: int = 8,
    by_layer: bool = False, metric: Metric | None = None, say: Say = lambda _: None,
) -> Choice:  # fmt: skip
    """The `budget` heads that matter least on `batches`, found greedily: importance is asked again after each round.

    method        of `heads.effects.head_importance`: "first-order", "zero", "mean" or "resample"
    whole_groups  all queries of a key/value head go together, so that the cache shrinks; the budget is not exceeded, and
                  what is left of it that no whole group fits into stays. Ablation takes the whole group away at once, and
                  its score is shared out among its heads; first-order scores of heads are added up
    by_layer      divide each layer's scores by their norm, as Michel et al. do

    One head or group of every attention always stays. Raises ManyheadsError where the budget cannot be met.
    """
    known = describe(model)
    held = now_held(known.stated, known.before)
    smallest, most, what = removable_range(held, whole_groups=whole_groups)
    if not smallest <= budget <= most:
        raise ManyheadsError(
            f"a budget of {budget} heads cannot be met: between {smallest} and {most} can go, in {what}, where one of each "
            "layer stays"
        )
    can = units(held, whole_groups=whole_groups)
    gone: list[Head] = []
    asked = 0
    while len(gone) + smallest <= budget:
        share = max(math.ceil((budget - len(gone)) / max(rounds - asked, 1)), smallest)
        say(f"round {asked + 1}: {_HOW.get(method, method)} of {sum(map(len, can.values())) - len(gone):,} heads")
        scores = _scores(
            model, known, gone, batches, method, whole_groups=whole_groups, by_layer=by_layer, metric=metric, say=say
        )
        asked += 1
        new = _least(can, scores, gone, min(share, budget - len(gone)))
        if not new:
            break
        gone += new
        say(f"round {asked}: {len(gone)} of {budget} heads go")
    return Choice(tuple(sorted(gone)), f"greedy by {_HOW[method]}", asked)


def _scores(
    model: Any, known: Described, gone: Sequence[Head], batches: Batches, method: str, *, whole_groups: bool,
    by_layer: bool, metric: Metric | None, say: Say,
) -> dict[Head, float]:  # fmt: skip
    """The importance of every working head by its original number, with the heads of `gone` masked; its share of that of
    its whole group where this was measured."""
    from manyheads.heads.effects import METHODS, ablate_heads, head_importance
    from manyheads.models.door.door import open_door

    gates = [mask(model, gone)] if gone else []
    counted = Pace(say).counted("passes")
    with open_door(model, gates=gates):
        if whole_groups and method in METHODS:
            found = ablate_heads(model, batches, how=method, metric=metric, unit="group", say=counted)
        else:
            found = head_importance(model, batches, metric=metric, method=method, say=counted)
    table = found.normalised() if by_layer else found.scores
    held, main = now_held(known.stated, known.before), main_stack(known.stated)
    scores = {}
    for row, module in enumerate(found.modules):
        stack = stack_name(held, module.stack or main)
        for number in module.numbers:
            together = 1 if found.unit == "head" else len(module.group_of(number))
            scores[Head(module.layer, number, stack)] = float(table[row, number]) / together
    return scores


def _least(
    can: Mapping[Head, Sequence[Head]], scores: Mapping[Head, float], gone: Sequence[Head], room: int
) -> list[Head]:
    """The units of the least importance a head that fit into `room`; the last of an attention stays."""
    before = set(gone)
    there = [unit for unit in can if unit not in before]
    left = Counter((unit.stack, unit.layer) for unit in there)
    new: list[Head] = []
    for unit in sorted(there, key=lambda unit: (sum(scores[head] for head in can[unit]) / len(can[unit]), unit)):
        place = (unit.stack, unit.layer)
        if len(new) + len(can[unit]) <= room and left[place] > 1:
            left[place] -= 1
            new += can[unit]
    return new


def closed_by_gates(gates: Gates) -> Choice:
    """The heads that trained gates (`heads.gates.train_gates`) closed, by their original numbers.

    Raises ManyheadsError where none is closed, and says whether they had the time to.
    """
    found = gates.closed()
    if not found:
        said = f"no gate closed at a penalty of {gates.penalty:g} a head, so nothing would go; "
        raise ManyheadsError(said + (gates.convergence.more or "a higher penalty closes more"))
    return Choice(tuple(sorted(found)), f"gates at a penalty of {gates.penalty:g} ({gates.convergence.text})", 1)


def reinitialised(model: Any, *, seed: int = 0) -> Any:
    """The same architecture with the weights that transformers starts training with, on the same device and in its type.

    Raises ConversionError for a model whose layers have different counts, which its class does not build.
    """
    known = describe(model)
    if known.before is not None and known.before.form == "compact":
        raise ConversionError(
            "this model's layers have lost different numbers of heads, which its class does not build afresh; compare the "
            "original model with its initialisation"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = type(model)(copy.deepcopy(model.config))
    return made.to(model.device, model.dtype).eval().requires_grad_(requires_grad=False)


def compare_with_init(
    model: Any, judged: Batches, heads: Sequence[Head], *, again: Callable[[Any], Sequence[Head]] | None = None,
    trained: LossChange | None = None, seed: int = 0, metric: Metric | None = None, say: Say = lambda _: None,
) -> InitComparison:  # fmt: skip
    """The pruning repeated on the same architecture at initialisation, nothing trained afterwards.

    judged   the text that losses are measured on
    again    chooses heads on a model, as they were chosen on this one; None where they were named by hand
    trained  what was measured of `model` itself, None: it is measured here
    """
    trained = trained or measure_loss_change(model, judged, heads, metric=metric)
    say("the same architecture at initialisation")
    new = reinitialised(model, seed=seed)
    same = measure_loss_change(new, judged, heads, metric=metric)
    own = measure_loss_change(new, judged, again(new), metric=metric) if again is not None else None
    return InitComparison(trained, same, own, seed)
