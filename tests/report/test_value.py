from __future__ import annotations

import pytest

from manyheads.report import Column, Report, Table


def test_a_row_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"row 2 of 'How much\?' has 1 texts for 2 columns"):
        Table("How much?", (Column("what"), Column("bytes", "right")), (("cache", "1"), ("cache",)))


def test_a_column_is_left_or_right() -> None:
    with pytest.raises(ValueError, match="align='centre'"):
        Column("what", "centre")


def test_two_reports_share_no_data() -> None:
    assert Report("a").data is not Report("b").data
