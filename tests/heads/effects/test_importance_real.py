"""Importance in a real model: taking SmolLM2's induction heads away breaks what they are for, and only then a lot."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from manyheads.heads.address import parse_head  # noqa: E402
from manyheads.heads.effects import ablate_heads, head_importance, removal_curve  # noqa: E402

pytestmark = pytest.mark.real

BLOCK = 24
SIX = [parse_head(name) for name in ("L18H6", "L17H3", "L17H4", "L17H5", "L23H2", "L23H7")]
OTHERS = [parse_head(name) for name in ("L18H1", "L17H0", "L17H6", "L17H8", "L23H0", "L23H5")]


def repeated(seeds: range) -> torch.Tensor:
    """Random tokens, twice in a row."""
    blocks = [torch.randint(1000, 40_000, (BLOCK,), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack([block.repeat(2) for block in blocks])


def second_copy(out: Any, batch: Any) -> torch.Tensor:
    """The loss where a token can be copied: from the second token of the second copy on."""
    logits, ids = out.logits[:, BLOCK:-1], batch["input_ids"][:, BLOCK + 1 :]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


def test_without_its_induction_heads_smollm2_copies_worse(smollm2: Any) -> None:
    ids = repeated(range(4))
    for how in ("zero", "mean"):
        gone, control = (
            removal_curve(smollm2.model, [ids], heads, counts=[0, 6], how=how, metric=second_copy)
            for heads in (SIX, OTHERS)
        )
        whole, without = gone.values
        assert whole == control.values[0]
        assert without - whole > 1.0  # nats a token; they were found by where they look, not by this
        assert without - whole > 2 * (control.values[1] - whole)


def test_scores_and_ablation_on_real_weights(smollm2: Any) -> None:
    """Grouped heads, tied embeddings, frozen weights: the prefix is reused, and the strongest head of induction stands out."""
    ids = repeated(range(4, 6))
    first = head_importance(smollm2.model, [ids], metric=second_copy)
    assert first.scores.shape == (30, 9)
    assert [(place.heads, place.kv_heads) for place in first.modules] == [(9, 3)] * 30
    assert first.ranking()[-27:].count(SIX[0]) == 1  # among the tenth that matters most
    quick, plain = (
        ablate_heads(smollm2.model, [ids], metric=second_copy, heads=SIX[:2], reuse=reuse) for reuse in (True, False)
    )
    assert quick.reused
    assert torch.equal(quick.scores.nan_to_num(), plain.scores.nan_to_num())
    assert quick.score(SIX[0]) > 0
    assert not any(parameter.requires_grad for parameter in smollm2.model.parameters())
