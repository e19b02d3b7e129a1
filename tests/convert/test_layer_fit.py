"""The layer fit: it comes closer to the original than it starts, through whatever stands in the attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from manyheads.convert.closed_form import close
from manyheads.convert.head_weights import HeadWeights, units_of
from manyheads.convert.layer_fit import FitSettings, LayerFit
from manyheads.convert.layer_run import LayerRun
from manyheads.convert.regroup import regroup
from manyheads.convert.source import open_source
from manyheads.errors import ConversionError
from support import tiny_transformers as tiny
from support.hidden_heads import hide
from support.regrouping import as_model, difference, windows

# a few more steps than by default: these layers are small, and so is what they are fitted on
STEPS: dict[str, Any] = {"key_steps": 40, "joint_steps": 60}


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "cohere", "qwen2"])
def test_the_fit_loses_less_than_the_closed_form_that_it_starts_from(name: str) -> None:
    model = tiny.build(name)
    source, texts = open_source(model), windows().windows
    spec = source.stack.main.blocks[0].attentions[0]
    weights = HeadWeights.of(spec, source.attention(source.stack.main.role, 0))
    units = units_of(spec, 1)
    with LayerRun(source, texts) as run:
        layer = run.layers[0]
        start = close(run, layer, weights, units, rounds=2, seed=0, last=False)
        fit = LayerFit(run, layer, weights, start.order, 1, FitSettings.of(STEPS))
        made, left = fit.fitted(start.weights, None)
        assert left == pytest.approx(fit.loss(made))
        assert left < 0.9 * fit.loss(start.weights)


@pytest.mark.parametrize("name", ["qwen3", "olmo2", "gemma3_text", "cohere-qk-norm", "stablelm-12b", "phi-qk-norm"])
def test_qk_norm_is_fitted_through(name: str) -> None:
    model = tiny.build(name)
    lost = {
        method: difference(model, as_model(model, regroup(model, 1, method=method, calibration=windows(), fit=fit)), name)
        for method, fit in (("layerfit", STEPS), ("mean", {}))
    }  # fmt: skip
    assert lost["layerfit"] < lost["mean"]


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_it_is_never_worse_than_where_it_starts(name: str) -> None:
    """Steps too long for it are thrown away."""
    model = tiny.build(name)
    closed, fitted = (
        regroup(model, 2, method=method, calibration=windows(4), fit={"key_steps": 2, "joint_steps": 2, "joint_rate": 1.0}
                if method == "layerfit" else {})
        for method in ("closed", "layerfit")
    )  # fmt: skip
    lost = [difference(model, as_model(model, each), name) for each in (closed, fitted)]
    assert lost[1] < 1.5 * lost[0]


def test_an_exact_solution_is_kept() -> None:
    hidden, _ = hide(tiny.build("gpt2", dtype=torch.float64), 2)
    made = regroup(hidden, 2, method="layerfit", calibration=windows(), fit={"key_steps": 4, "joint_steps": 4})
    assert difference(hidden, as_model(hidden, made), "gpt2") < 1e-6


def test_the_models_own_weights_are_not_touched() -> None:
    model = tiny.build("llama")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    regroup(model, 1, method="layerfit", calibration=windows(), fit={"key_steps": 2, "joint_steps": 2})
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_what_the_fit_cannot_do_is_said() -> None:
    with pytest.raises(ConversionError, match="setting speed is not one of key_steps"):
        regroup(tiny.build("llama"), 1, method="layerfit", calibration=windows(), fit={"speed": 1})
    model = tiny.build("llama", num_attention_heads=12, num_key_value_heads=4, head_dim=6)
    with pytest.raises(ConversionError, match="do not divide 4"):
        regroup(model, 3, method="layerfit", calibration=windows())
    with pytest.raises(ConversionError, match="load it in float32"):
        regroup(tiny.build("llama", dtype=torch.bfloat16), 1, method="layerfit", calibration=windows())
