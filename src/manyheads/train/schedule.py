"""Learning rates by step."""

from __future__ import annotations

from manyheads.errors import SpecError
from manyheads.quoting import shown

__all__ = ["inverse_square_root"]


def inverse_square_root(step: int, *, d_model: int, warmup: int) -> float:
    """eta = d_model^-0.5 · min(s^-0.5, s · warmup^-1.5): up in a line for `warmup` steps, then down as 1/sqrt(s).

    Steps count from 1; step 0, before the first update, has the rate 0. Source: arXiv 1706.03762, section 5.3
    [facts: A69].
    """
    for name, value, least in (("step", step, 0), ("d_model", d_model, 1), ("warmup", warmup, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SpecError(f"{name} must be an integer of {least} or more, found {shown(value)}")
    return d_model**-0.5 * (min(step**-0.5, step * warmup**-1.5) if step else 0.0)
