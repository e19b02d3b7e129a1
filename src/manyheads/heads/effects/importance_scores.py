"""How much each head matters, as a table of one number a head, whoever measured it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head, OneHead, address
from manyheads.heads.attention_modules import AttentionModule, row_of
from manyheads.heads.significance import benjamini_hochberg, mean_interval, student_quantile, two_sided

__all__ = ["Importance", "rank_correlation", "ranks", "spearman"]


@dataclass(frozen=True, eq=False)
class Importance:
    """The importance of heads: higher matters more.

    method        "first-order", "zero", "mean" or "resample"
    scores        (rows, heads), float64: row i belongs to `modules[i]`, in a model of one stack the layers in order; the
                  column is the number of the head, in a pruned model its original one. The
                  mean of |dL/dg| a sequence for first-order, else the metric without the head minus `baseline`. NaN where
                  there is no such head or it was not asked for
    exact         (rows, heads): True where the head was really taken away
    baseline      the metric of the whole model, the mean over all that was judged
    slopes        for first-order, (rows, heads): the mean of dL/dg with its sign; -slope is what removal is expected to add
    by_batch      (batches, rows, heads): the same as `scores` for each batch; `weights` (batches,) its share in the mean
    seconds       how long it took
    reused        whether the layers before a head were computed once, their activations cached (ablation only)
    unit          "head", or "group": all query heads of a key/value head went at once, and the score stands at each of them
    """

    method: str
    scores: Tensor
    exact: Tensor
    baseline: float
    modules: tuple[AttentionModule, ...]
    by_batch: Tensor
    weights: Tensor
    seconds: float
    slopes: Tensor | None = None
    reused: bool = False
    unit: str = "head"

    def __repr__(self) -> str:
        many = len(self.heads())
        how = {"first-order": "first-order"}.get(self.method, f"ablation by {self.method}, {self.unit} by {self.unit}")
        return (
            f"Importance({how}: {many} head{'s' * (many != 1)} on {len(self.weights)} "
            f"batch{'es' * (len(self.weights) != 1)}, baseline {self.baseline:.4f}; {self.seconds:.1f} s)"
        )

    def score(self, head: OneHead) -> float:
        """The score of one head, as "3:1" or Head(3, 1). ManyheadsError where there is no such head."""
        one = address(head)
        return float(self.scores[row_of(self.modules, one), one.head])

    def heads(self) -> tuple[Head, ...]:
        """The heads that have a score, row by row."""
        return tuple(
            module.head(number)
            for row, module in enumerate(self.modules)
            for number in module.numbers
            if not torch.isnan(self.scores[row, number])
        )

    def ranking(self, *, by_layer: bool = False) -> tuple[Head, ...]:
        """All heads, the least important first; `by_layer`: after each layer's scores are divided by their norm, as in
        Michel et al. (arXiv 1905.10650, section 4.1). Equal scores keep the order of their layers."""
        scores = self.normalised() if by_layer else self.scores
        return tuple(sorted(self.heads(), key=lambda head: float(scores[row_of(self.modules, head), head.head])))

    def normalised(self) -> Tensor:
        """The scores of each row divided by their Euclidean norm; a row of zeros stays as it is."""
        norms = torch.nan_to_num(self.scores).norm(dim=1, keepdim=True)
        return self.scores / torch.where(norms > 0, norms, 1.0)

    def interval(self) -> tuple[Tensor, Tensor]:
        """95% of each score over the batches, Student's t (`significance.mean_interval`), (rows, heads) each; NaN with one batch.

        Of what removal adds. A first-order score is a mean of sizes, which is above 0 for every head: its interval says how far
        it varies, and not whether the head matters.
        """
        low, high = mean_interval(self.by_batch.numpy(), self.weights.numpy())
        return torch.from_numpy(low), torch.from_numpy(high)

    def q_values(self) -> Tensor:
        """(rows, heads) of Benjamini and Hochberg over all heads that have a score: two-sided, that what removal adds is 0. NaN with
        one batch. ManyheadsError for first-order scores, which are sizes."""
        if not bool(self.exact.any()):
            raise ManyheadsError(
                "first-order scores are sizes, none of which is 0; exact ablation can be told apart from 0"
            )
        degrees = len(self.weights) - 1
        low, high = (end.numpy() for end in self.interval())
        errors = (high - low) / 2 / student_quantile(degrees) if degrees else np.full_like(low, np.nan)
        p_values = two_sided(self.scores.numpy(), errors, np.full(errors.shape, degrees))
        return torch.from_numpy(benjamini_hochberg(p_values.flatten())).reshape(self.scores.shape)


def ranks(values: Tensor) -> Tensor:
    """Ranks from 0 of a vector, equal values sharing the mean of theirs."""
    _, inverse, counts = torch.unique(values, sorted=True, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts.double() + 1) / 2)[inverse]


def rank_correlation(one: Importance, other: Importance) -> float:
    """Spearman's coefficient between two measurements, over the heads that both have.

    ManyheadsError where they are of different models, share fewer than three heads, or one of them has all heads equal.
    """
    if one.modules != other.modules:
        raise ManyheadsError(
            f"one importance is of {len(one.modules)} attention modules and the other of {len(other.modules)}, with other names or other "
            "numbers of heads; expected two measurements of one model"
        )
    both = ~torch.isnan(one.scores) & ~torch.isnan(other.scores)
    return spearman(one.scores[both], other.scores[both])


def spearman(one: Tensor, other: Tensor) -> float:
    """Spearman's coefficient between two vectors. ManyheadsError for fewer than three values, and where all of one are equal."""
    if len(one) < 3:
        raise ManyheadsError(f"the two share {len(one)} heads; at least 3 are needed for a rank correlation")
    a, b = ranks(one), ranks(other)
    a, b = a - a.mean(), b - b.mean()
    if not a.norm() or not b.norm():
        raise ManyheadsError("all heads have the same importance in one of the two, so there is no order to compare")
    return float((a @ b) / (a.norm() * b.norm()))
