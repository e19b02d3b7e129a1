"""The probabilities that observers see are the ones that transformers' own eager attention returns, for every tiny family."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from manyheads.errors import ManyheadsError
from manyheads.heads.attention_modules import ModuleIndex
from manyheads.models.door.attentions import find_attentions
from manyheads.models.door.door import Call, open_door
from manyheads.ops import softmax
from support import rounding
from support.tiny_transformers import CASES, build, inputs

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

    def look(call: Call, _: torch.Tensor) -> None:
        whole = seen[call.path] = call.weights()
        heads, rows = [whole.shape[1] - 1, 0], [whole.shape[2] - 1, 0, 1]
        torch.testing.assert_close(call.weights(heads=heads, queries=rows), whole[:, heads][:, :, rows])
        torch.testing.assert_close(call.weights(heads=[1]), whole[:, [1]])

    stages: dict[str, list[str]] = {}
    for path, stack in ModuleIndex(find_attentions(model)).stacks.items():
        stages.setdefault(stack, []).append(path)
    expected = {
        stage: rounding.model(
            model, batch, output_attentions=True, pick=lambda answer, stage=stage: torch.stack(theirs(answer, stage))
        )
        for stage in stages
    }
    with torch.no_grad(), open_door(model, observers=[look]):
        model(**batch)
    for stage, paths in stages.items():
        assert expected[stage].holds(torch.stack([seen[path] for path in paths]))


def test_weights_of_chosen_rows_hold_no_matrix_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = build("llama"), []
    real = softmax.block
    monkeypatch.setattr(softmax, "block", lambda *a, **b: sizes.append((out := real(*a, **b)).shape[2]) or out)
    ids = torch.arange(200)[None] % 90
    with torch.no_grad(), open_door(model, observers=[lambda call, _: call.weights(heads=[2])]):
        model(ids)
    assert max(sizes) == 64
    with (
        pytest.raises(ManyheadsError, match=r"weights of heads 9 were asked for; .*self_attn has 0 to 5"),
        open_door(model, observers=[lambda call, _: call.weights(heads=[9])]),
    ):
        model(ids)
