"""The probabilities that observers see are the ones that transformers' own eager attention returns, for every tiny family."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from manyheads.heads.batches import places
from manyheads.models.door import opened
from manyheads.models.door_attentions import find_attentions
from tiny_transformers import CASES, build, inputs

OWN_ATTENTION = ("falcon", "bloom", "mpt")
FAMILIES = [name for name, case in CASES.items() if case["model_type"] not in OWN_ATTENTION]
NAMES = {"": ("attentions",), "encoder": ("encoder_attentions", "attentions"), "decoder": ("decoder_attentions",),
         "cross": ("cross_attentions",)}  # fmt: skip


def theirs(answer: Any, stage: str) -> list[torch.Tensor]:
    """What the model returned for a stack: one tensor a layer of attention."""
    found = next(got for name in NAMES[stage] if (got := getattr(answer, name, None)) is not None)
    return [probabilities for probabilities in found if probabilities is not None]


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_those_of_eager_attention(name: str) -> None:
    model, batch = build(name), inputs(name)
    seen: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        answer = model(**batch, output_attentions=True)
        with opened(model, observers=[lambda call, out: seen.update({call.path: call.weights()})]):
            model(**batch)
    found = places(find_attentions(model))
    for stage in dict.fromkeys(place.stage for place in found):
        expected = theirs(answer, stage)
        ours = [seen[place.path] for place in found if place.stage == stage]
        assert len(ours) == len(expected)
        for mine, right in zip(ours, expected, strict=True):
            assert mine.shape == right.shape
            assert torch.allclose(mine, right, rtol=0, atol=1e-5)
