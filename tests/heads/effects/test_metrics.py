"""The loss of the next token: against the plain cross entropy, in value and gradient, and with a frame around the text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from manyheads.errors import ManyheadsError  # noqa: E402
from manyheads.heads.effects import metrics, next_token_loss  # noqa: E402
from manyheads.heads.effects.metrics import summed_cross_entropy  # noqa: E402


def drawn(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def said(logits: Any) -> Any:
    return SimpleNamespace(logits=logits)


@pytest.mark.parametrize("numbers", [1, 50, 333, 1 << 22])
def test_blocks_of_rows_are_the_plain_sum_and_have_its_gradient(monkeypatch: Any, numbers: int) -> None:
    monkeypatch.setattr(metrics, "_BLOCK_NUMBERS", numbers)
    labels = torch.randint(0, 11, (3, 13), generator=torch.Generator().manual_seed(1))
    labels[0, 2], labels[2, -1] = -100, -100
    ours, plain = (drawn(3, 13, 11).requires_grad_() for _ in range(2))
    found = summed_cross_entropy(ours, labels)
    wanted = torch.nn.functional.cross_entropy(plain.flatten(0, 1), labels.flatten(), reduction="sum")
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
    found.backward()
    wanted.backward()
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-12, atol=1e-14)
    assert not ours.grad[0, 2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_summed_in_float32_at_least(dtype: Any) -> None:
    """Several blocks at the real size of a block, against float64 of the same numbers."""
    logits = drawn(1, 300, 40_000, dtype=dtype)
    ids = torch.randint(0, 40_000, (1, 300), generator=torch.Generator().manual_seed(1))
    loss, count = next_token_loss(said(logits), {"input_ids": ids})
    wide = logits[0, :-1].double().log_softmax(-1)
    assert count == 299
    assert float(loss) == pytest.approx(float(-wide.gather(1, ids[0, 1:, None]).mean()), rel=1e-6)


def test_a_frame_is_read_and_not_scored() -> None:
    logits, ids = drawn(2, 7, 10), torch.tensor([[1, 5, 6, 7, 8, 9, 2], [1, 4, 4, 3, 8, 5, 2]])
    by_hand = -sum(logits[r, t - 1].log_softmax(-1)[ids[r, t]] for r in range(2) for t in range(2, 6)) / 8
    loss, count = next_token_loss(said(logits), {"input_ids": ids}, before=1, after=1)
    assert (float(loss), count) == (pytest.approx(float(by_hand), rel=1e-12), 8)


def test_padding_on_either_side_is_not_scored() -> None:
    logits, ids = drawn(2, 5, 10), torch.tensor([[0, 0, 5, 6, 7], [5, 6, 7, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    pairs = [(0, 3), (0, 4), (1, 1), (1, 2)]
    by_hand = -sum(logits[r, t - 1].log_softmax(-1)[ids[r, t]] for r, t in pairs) / 4
    loss, count = next_token_loss(said(logits), {"input_ids": ids, "attention_mask": mask})
    assert (float(loss), count) == (pytest.approx(float(by_hand), rel=1e-12), 4)


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(ManyheadsError, match=r"a batch of shape \(1, 3\) has no token whose loss"):
        next_token_loss(said(drawn(1, 3, 10)), {"input_ids": torch.tensor([[1, 5, 2]])}, before=1, after=1)
    with pytest.raises(ManyheadsError, match="no logits in what the model returned"):
        next_token_loss(SimpleNamespace(), {"input_ids": torch.tensor([[1, 2]])})


def test_texts_that_are_packed_into_a_row_are_scored_as_by_themselves() -> None:
    """No token is guessed from the text before its own; two texts of one token have nothing to score."""
    lengths = (4, 1, 3, 1, 2)
    ids, logits = torch.randint(0, 11, (1, 11), generator=torch.Generator().manual_seed(2)), drawn(1, 11, 11)
    at = torch.tensor([[place for length in lengths for place in range(length)]])
    loss, count = next_token_loss(said(logits), {"input_ids": ids, "position_ids": at})
    parts = [
        next_token_loss(said(own), {"input_ids": row})
        for own, row in zip(logits.split(lengths, 1), ids.split(lengths, 1), strict=True) if row.shape[1] > 1
    ]  # fmt: skip
    assert count == sum(n for _, n in parts) == 3 + 2 + 1
    assert loss.item() == pytest.approx(sum(value.item() * n for value, n in parts) / count, rel=1e-12)
    counted, whole = next_token_loss(said(logits), {"input_ids": ids, "position_ids": torch.arange(11)[None]}), 10
    assert counted[1] == whole
    masked = {
        "input_ids": ids,
        "position_ids": at,
        "attention_mask": torch.ones(1, 11),
    }  # transformers packs nothing here
    assert next_token_loss(said(logits), masked)[1] == whole
