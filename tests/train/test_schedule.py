"""The learning rate of the 2017 paper."""

from __future__ import annotations

from itertools import pairwise

import pytest

from manyheads.errors import SpecError
from manyheads.train.schedule import inverse_square_root


@pytest.mark.parametrize(("step", "rate"), [(1, 1.7469e-7), (4000, 6.9877e-4), (8000, 4.9411e-4)])
def test_o100_rates_by_hand(step: int, rate: float) -> None:
    """Case O100: d=512, warm-up 4000; to the digits of the report."""
    assert inverse_square_root(step, d_model=512, warmup=4000) == pytest.approx(rate, rel=5e-5)


def test_o100_no_two_steps_of_the_warm_up_are_alike() -> None:
    rates = [inverse_square_root(step, d_model=512, warmup=4000) for step in range(5)]
    assert rates[0] == 0.0
    assert all(b > a for a, b in pairwise(rates))


@pytest.mark.parametrize("bad", [{"step": -1}, {"d_model": 0}, {"warmup": 0}, {"step": 1.5}, {"step": True}])
def test_bad_numbers_are_named(bad: dict) -> None:
    with pytest.raises(SpecError, match=next(iter(bad))):
        inverse_square_root(**{"step": 1, "d_model": 512, "warmup": 4000, **bad})
