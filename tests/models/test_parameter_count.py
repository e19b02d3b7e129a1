"""Parameters loaded against predicted: equal for every family, and a difference is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manyheads.models.load.model import load
from manyheads.models.parameter_count import NamedElements, check_parameters
from support import tiny_models

torch = pytest.importorskip("torch")


def both(folder):
    loaded = load(folder)
    return loaded.model, loaded.stack


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_what_was_loaded_is_what_was_predicted(tiny, family: str) -> None:
    model, stack = both(tiny(family))
    found = check_parameters(model, stack)
    assert found.equal, found
    tensors = {id(tensor): tensor.numel() for tensor in model.parameters()}
    assert found.loaded + found.task_head == sum(tensors.values())
    assert (found.missing, found.extra) == ((), ())


def test_a_tied_head_counts_once_and_a_buffer_apart(tiny) -> None:
    model, stack = both(tiny("llama"))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    # by hand: 384 x 32 tokens; a layer has q and o of 32 x 32, k and v of 16 x 32, three MLP matrices of 48 x 32 and two
    # norms of 32; one norm at the end
    assert check_parameters(model, stack).loaded == 384 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32 + 64) + 32
    routed = check_parameters(*both(tiny("deepseek_v3")))
    assert routed.loaded_buffers == 4  # one correction an expert, in the one layer that has experts


def test_a_head_for_a_task_is_told_apart(tiny) -> None:
    found = check_parameters(*both(tiny("bert")))
    # BertForMaskedLM: a dense 32 x 32 with bias, a norm of 2 x 32, and a bias a token
    assert found.task_head == 32 * 32 + 32 + 64 + 384


def test_a_difference_is_named_tensor_by_tensor(tiny) -> None:
    model, stack = both(tiny("llama"))
    layer = model.model.layers[1]
    layer.mlp.gate_proj = torch.nn.Linear(32, 50, bias=False)
    layer.self_attn.q_proj = torch.nn.Linear(32, 32, bias=True)
    found = check_parameters(model, stack)
    assert not found.equal
    assert found.loaded - found.predicted == 2 * 32 + 32
    assert found.missing == (NamedElements("model.layers.1.mlp.gate_proj.weight", 48 * 32),)
    assert set(found.extra) == {
        NamedElements("model.layers.1.mlp.gate_proj.weight", 50 * 32),
        NamedElements("model.layers.1.self_attn.q_proj.bias", 32),
    }


def test_a_parameter_that_is_a_view_of_another_adds_nothing(tiny) -> None:
    model, stack = both(tiny("gpt2"))
    whole = check_parameters(model, stack)
    model.transformer.wpe.weight = torch.nn.Parameter(model.transformer.wte.weight.data[:64])  # 64 of 384 rows of 32
    found = check_parameters(model, stack)
    assert whole.loaded - found.loaded == 64 * 32
    assert (found.equal, found.missing, found.extra) == (False, (), ())
    assert found.shared == (("transformer.wte.weight", "transformer.wpe.weight"),)
    projection = model.transformer.h[0].attn.c_proj
    projection.weight = torch.nn.Parameter(model.transformer.h[1].attn.c_proj.weight.data.T)
    assert found.loaded - check_parameters(model, stack).loaded == 32 * 32


def test_a_head_that_looks_into_the_table_is_no_head_of_its_own(tiny) -> None:
    model, stack = both(tiny("bert"))
    before = check_parameters(model, stack)
    model.cls.predictions.decoder.weight = torch.nn.Parameter(model.bert.embeddings.word_embeddings.weight.data)
    assert check_parameters(model, stack).task_head == before.task_head == 32 * 32 + 32 + 64 + 384


def test_a_wrong_description_is_a_difference(tiny) -> None:
    model, stack = both(tiny("mistral"))
    assert not check_parameters(model, replace(stack, head="tied")).equal


@pytest.mark.real
def test_smollm2_has_the_published_number(smollm2) -> None:
    stack, loaded = smollm2
    found = check_parameters(loaded.model, stack)
    assert (found.predicted, found.loaded, found.equal) == (134_515_008, 134_515_008, True)
