"""Elements that lie in memory, each counted once: by hand, of views whose overlap can be drawn."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from manyheads.models.shared_memory import distinct_elements, overlapping  # noqa: E402


def test_what_shares_no_element_counts_whole() -> None:
    flat = torch.arange(24.0)
    fused = torch.zeros(4, 6)
    parts = {
        "one": flat[:10],
        "beside": flat[10:],
        "left": fused[:, :2],
        "right": fused[:, 2:],
        "alone": torch.zeros(3, 5),
    }
    assert distinct_elements(parts) == 24 + 24 + 15
    assert overlapping(parts) == ()


def test_what_shares_elements_counts_once() -> None:
    table = torch.zeros(7, 4)
    tensors = {
        "table": table, "again": table, "slice": table[2:5], "turned": table.T, "columns": table[:, 1:3],
        "object": torch.nn.Parameter(table.data), "other": torch.zeros(5),
    }  # fmt: skip
    assert distinct_elements(tensors) == 7 * 4 + 5
    assert overlapping(tensors) == (("table", "again", "slice", "turned", "columns", "object"),)


@pytest.mark.parametrize(
    ("tensors", "held"),
    [
        ((torch.zeros(5).expand(3, 5),), 5),  # one row, shown three times
        ((torch.zeros(9)[::2],), 5),  # every second element of nine
        ((torch.zeros(6).unfold(0, 3, 1),), 6),  # windows of three that run into each other
        ((torch.zeros(12)[:8], torch.zeros(12)[4:]), 16),  # two storages
        ((torch.zeros(3, 0),), 0),
    ],
)
def test_one_tensor_that_is_not_dense(tensors: tuple[torch.Tensor, ...], held: int) -> None:
    assert distinct_elements({str(at): tensor for at, tensor in enumerate(tensors)}) == held


def test_two_slices_of_one_storage_count_their_union() -> None:
    flat = torch.zeros(12)
    assert distinct_elements({"head": flat[:8], "tail": flat[4:]}) == 12
    assert overlapping({"tail": flat[4:], "end": flat[11:], "head": flat[:5]}) == (("tail", "end", "head"),)


def test_without_memory_each_object_counts_once() -> None:
    one = torch.nn.Linear(3, 5, bias=False, device="meta").weight
    two = torch.nn.Linear(3, 5, bias=False, device="meta").weight
    assert distinct_elements({"one": one, "tied": one, "two": two}) == 30
    assert overlapping({"one": one, "tied": one, "two": two}) == (("one", "tied"),)
