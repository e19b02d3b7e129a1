"""The inverse questions: what is the longest context, the largest batch, in a budget of bytes.

Sizes grow with both, so a search by halving finds the exact answer: `longest_context` of a size is the context again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from manyheads.cost.model import cache_bytes, weight_bytes
from manyheads.cost.parameters import stored_parameters
from manyheads.cost.workload import MOST_TOKENS, Workload
from manyheads.spec.inventory import weights
from manyheads.spec.stack import StackSpec

__all__ = ["all_weight_bytes", "largest_batch", "longest_context", "needed_bytes"]

MOST_SEQUENCES = 10**9


def all_weight_bytes(model: StackSpec, load: Workload) -> int:
    """Bytes of all weights, every expert and both ends of an encoder-decoder included."""
    return weight_bytes(model, load, stored_parameters(weights(model)))


def needed_bytes(model: StackSpec, load: Workload) -> int:
    """Bytes of all weights and of the ideal cache; a runtime's workspace comes on top."""
    return all_weight_bytes(model, load) + int(cache_bytes(model, load).total)


def longest_context(model: StackSpec, load: Workload, budget: int) -> int | None:
    """The longest context whose weights and cache fit in `budget` bytes: 0 for none, None for any length."""
    free = budget - all_weight_bytes(model, load)
    return _largest(lambda tokens: int(cache_bytes(model, load, tokens).total) <= free, MOST_TOKENS)


def largest_batch(model: StackSpec, load: Workload, budget: int) -> int | None:
    """The most sequences of the workload's context that fit in `budget` bytes: 0 for none, None for any number."""
    free = budget - all_weight_bytes(model, load)
    return _largest(lambda batch: int(cache_bytes(model, replace(load, batch=batch)).total) <= free, MOST_SEQUENCES)


def _largest(fits: Callable[[int], bool], most: int) -> int | None:
    """The largest n in [1, most] that fits, 0 where 1 does not, None where even `most` does; `fits` is monotone."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high < most and fits(high):
        low, high = high, 2 * high
    if high >= most:
        if fits(most):
            return None
        high = most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
