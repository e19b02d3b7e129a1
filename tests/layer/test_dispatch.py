"""Sizes of masks and biases are looked at in a graph too, whichever backend computes the call there."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from manyheads.errors import SpecError  # noqa: E402
from manyheads.layer.dispatch import attend  # noqa: E402
from manyheads.ops.call import AttentionCall  # noqa: E402

KEYS = 5


@pytest.mark.parametrize("learns", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize(
    "terms",
    [
        {"visible": torch.ones(1, 1, 1, 1, dtype=torch.bool)},
        {"visible": torch.ones(1, 1, 1, KEYS + 1, dtype=torch.bool)},
        {"bias": torch.zeros(1, 3, 1, KEYS)},
    ],
    ids=["a mask of one column", "a mask of more keys", "a bias of more heads"],
)
def test_a_step_in_a_graph_refuses_what_a_step_refuses(terms: dict[str, Any], learns: bool) -> None:
    """With gradients no kernel computes it, so its operator, which looks where it runs, is not in the graph."""
    torch._dynamo.reset()
    q, k, v = (torch.randn(1, 2, count, 8) for count in (1, KEYS, KEYS))
    q.requires_grad_(learns)

    def step(q: torch.Tensor) -> torch.Tensor:
        return attend(AttentionCall.checked(q, k, v, scale=0.3, sizes_later=True, **terms))

    with pytest.raises(SpecError) as plainly:
        step(q)
    with pytest.raises(SpecError) as compiled:
        torch.compile(step, backend="aot_eager")(q)
    assert str(compiled.value) == str(plainly.value)
