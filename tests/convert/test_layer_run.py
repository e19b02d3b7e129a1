"""Layers one at a time give what the whole model gives, whether it holds its weights or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from manyheads.convert.calibration_text import Calibration
from manyheads.convert.layer_run import LayerRun
from manyheads.convert.regroup import regroup
from manyheads.convert.source import open_source
from manyheads.errors import ConversionError
from manyheads.models.door.door import Call, open_door
from support import tiny_transformers as tiny_models

FAMILIES = (
    "llama",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "bert",
    "modernbert",
    "gpt_oss",
    "t5-encoder",
    "smollm3-window",
)


def windows(tokens: int = 24) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(3, 90, (tokens - number,), generator=draw) for number in range(3)]


def whole(model: Any, texts: list[torch.Tensor]) -> dict[tuple[int, int], list[torch.Tensor]]:
    """Queries, keys and outputs of every attention, by layer and window, as the whole model makes them."""
    found: dict[tuple[int, int], list[torch.Tensor]] = {}
    for number, text in enumerate(texts):

        def look(call: Call, outputs: torch.Tensor, number: int = number) -> None:
            found[call.layer, number] = [call.q, call.k, call.v, outputs]

        with open_door(model, observers=[look], mode="eval"), torch.no_grad():
            model(input_ids=text[None])
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_every_attention_is_given_what_the_whole_model_gives_it(name: str) -> None:
    model, texts = tiny_models.build(name), windows()
    wanted = whole(model, texts)
    with LayerRun(open_source(model), texts) as run:
        for layer in run.layers:
            seen: list[list[torch.Tensor]] = []
            run.attention(layer, lambda call, outputs, seen=seen: seen.append([call.q, call.k, call.v, outputs]))
            run.advance(layer)
            for number, found in enumerate(seen):
                for one, other in zip(found, wanted[layer.index, number], strict=True):
                    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert model.training is False
    assert "forward" not in vars(run.source.model.get_submodule(run.layers[0].path))


def test_what_passes_between_layers_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LayerRun(open_source(tiny_models.build("llama")), windows()) as run:
        run.advance(run.layers[0])
        assert [path.name for path in tmp_path.rglob("*.hidden")] == ["0.hidden"]
        run.advance(run.layers[1])
        assert len(list(tmp_path.rglob("*.hidden"))) <= 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "bert"])
def test_weights_read_layer_by_layer_give_the_same_model(tiny: Callable[[str], Path], family: str) -> None:
    calibration = Calibration(
        tuple(torch.randint(3, 90, (20,), generator=torch.Generator().manual_seed(n)) for n in range(3)), ()
    )
    held = regroup(str(tiny(family)), 1, calibration=calibration)
    streamed = regroup(str(tiny(family)), 1, calibration=calibration, layer_by_layer=True)
    assert streamed.stack == held.stack
    for name in held.weights:
        torch.testing.assert_close(streamed.weights[name], held.weights[name], atol=1e-5, rtol=1e-4)


def test_a_model_built_without_weights_holds_none_afterwards(tiny: Callable[[str], Path]) -> None:
    source = open_source(str(tiny("llama")), layer_by_layer=True)
    with LayerRun(source, windows()) as run:
        with source.holding(run.layers[1].path):
            assert source.model.get_submodule(run.layers[1].path).self_attn.q_proj.weight.device.type == "cpu"
        layers = [
            name for name, parameter in source.model.named_parameters() if ".layers." in name and not parameter.is_meta
        ]
    assert layers == []


def test_a_mixture_is_not_read_layer_by_layer(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(ConversionError, match="mixture of experts"):
        open_source(str(tiny("mixtral")), layer_by_layer=True)
