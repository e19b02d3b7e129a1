"""`output_attentions=True` under "manyheads": what a model's own eager attention answers, in every family that passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

import manyheads
from manyheads.models.door import call as door_call
from support import rounding
from support import tiny_transformers as tiny

# Families whose modules take `output_attentions` for themselves and do not hand it to the attention function.
KEPT_FOR_ITSELF = ("gpt2", "opt", "opt-350m", "stablelm", "stablelm-12b", "persimmon", "persimmon-no-norm")
OWN_ATTENTION = ("falcon", "bloom", "mpt")
FAMILIES = [name for name, case in tiny.CASES.items() if case["model_type"] not in OWN_ATTENTION]
_BIGCODE = {"vocab_size": 97, "n_embd": 36, "n_layer": 2, "n_head": 6, "n_positions": 32, "n_inner": 40}
_CHAMELEON = {
    "vocab_size": 97, "hidden_size": 36, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocabulary_map": {"<image>": 5},
    "vq_config": {"embed_dim": 8, "num_embeddings": 16, "latent_channels": 8, "resolution": 16, "base_channels": 32,
                  "channel_multiplier": [1], "num_res_blocks": 1},
}  # fmt: skip


@pytest.fixture(autouse=True)
def named() -> Iterator[None]:
    manyheads.enable()
    yield
    manyheads.disable()


def answers(model: Any, batch: dict[str, Any], attention: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """All attentions that the model answers with, by their names there."""
    model.set_attn_implementation(attention)
    with torch.no_grad():
        out = model(**batch, output_attentions=True)
    return {key: value for key, value in out.items() if "attentions" in key}


def check(model: Any, batch: dict[str, Any]) -> None:
    """Layer by layer the shapes of eager attention, and its probabilities as float64 has them."""
    theirs, ours = answers(model, batch, "eager"), answers(model, batch, "manyheads")
    assert any(theirs.values())
    shapes = [{key: [part.shape for part in layers] for key, layers in each.items()} for each in (theirs, ours)]
    assert shapes[0] == shapes[1]

    def flat(out: Any) -> torch.Tensor:
        return torch.cat([part.flatten() for key in theirs for part in out[key]])

    assert rounding.model(model, batch, output_attentions=True, pick=flat).holds(flat(ours))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_answers_with_its_weights(name: str) -> None:
    """Case O20: transformers records what the function returns, which is None under its SDPA."""
    check(tiny.build(name), tiny.inputs(name))


@pytest.mark.parametrize("multi_query", [True, False])
def test_gpt_bigcode_answers_with_its_weights(multi_query: bool) -> None:
    config = transformers.GPTBigCodeConfig(**_BIGCODE, multi_query=multi_query)
    check(transformers.GPTBigCodeForCausalLM(config).eval(), tiny.inputs("llama"))


@pytest.mark.parametrize("swin_norm", [True, False])
def test_chameleon_answers_with_its_weights(swin_norm: bool) -> None:
    config = transformers.ChameleonConfig(**_CHAMELEON, swin_norm=swin_norm)
    check(transformers.ChameleonForConditionalGeneration(config).eval(), {"input_ids": torch.arange(6, 28).view(2, 11)})


@pytest.mark.parametrize("name", KEPT_FOR_ITSELF)
def test_no_weights_are_worked_out_that_nobody_asked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build(name)
    model.set_attn_implementation("manyheads")
    monkeypatch.setattr(door_call.Call, "weights", lambda *_, **__: pytest.fail("weights were worked out"))
    with torch.no_grad():
        answer = model(**tiny.inputs(name), output_hidden_states=True)
    assert answer.attentions is None


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own parts
def test_a_compiled_model_answers_with_its_weights() -> None:
    model, batch = tiny.build("opt"), tiny.inputs("opt")
    expected = answers(model, batch, "manyheads")["attentions"]
    found = torch.compile(model, backend="eager", fullgraph=True)(**batch, output_attentions=True).attentions
    assert [torch.equal(a, b) for a, b in zip(found, expected, strict=True)] == [True, True]
    torch._dynamo.reset()
