"""JSON: lossless, versioned, and exact about what is wrong where."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import SpecError
from manyheads.spec import AttentionSpec, Heads, Rope, Window, from_json, parse_stack, to_json
from manyheads.spec.jsonform import SCHEMA, from_json_text, to_json_text
from support.strategies import attention_specs, blocks, models, stacks


@given(attention_specs() | blocks() | stacks() | models())
def test_json_is_lossless(spec: Any) -> None:
    assert from_json(to_json(spec)) == spec
    assert from_json_text(to_json_text(spec)) == spec


def test_the_form_is_stable() -> None:
    spec = AttentionSpec.gqa(4096, 32, 8, positions=Rope(128, 5e5), mask=Window(4096), bias="q")
    assert to_json(spec) == {
        "schema": "manyheads.spec/1",
        "type": "AttentionSpec",
        "d_model": 4096,
        "num_heads": 32,
        "kv": {"type": "Heads", "num_kv_heads": 8, "head_dim": 128, "v_head_dim": 128},
        "positions": {
            "type": "Rope", "dim": 128, "base": 500000.0, "layout": "halves", "scaling": {"type": "NoScaling"},
        },
        "mask": {"type": "Window", "keys": 4096},
        "source": {"type": "Self"},
        "bias": {"type": "Bias", "q": True, "k": False, "v": False, "o": False},
        "scale": 128**-0.5,
        "softcap": None,
        "sinks": False,
        "qk_norm": None,
        "output_gate": False,
    }  # fmt: skip


def test_defaults_and_the_only_possible_type_may_be_left_out() -> None:
    written = {
        "schema": SCHEMA,
        "type": "AttentionSpec",
        "d_model": 512,
        "num_heads": 8,
        "kv": {"type": "Heads", "num_kv_heads": 8, "head_dim": 64, "v_head_dim": 64},
        "positions": {"type": "NoPositions"},
        "mask": {"type": "Causal"},
        "bias": {"q": True},
        "scale": 0.125,
    }
    assert from_json(written) == AttentionSpec.mha(512, 8, bias="q")


def test_repeated_layers_are_written_once() -> None:
    model = parse_stack("mha(8, 2x4), (gqa(8, 4/2x4, window=4), gqa(8, 4/2x4)) x 21, mha(8, 2x4) x 3")
    row = to_json(model)["stacks"][0]["blocks"]
    assert [item.get("repeat", 1) for item in row] == [1, 21, 3]
    assert [len(item.get("items", "1")) for item in row] == [1, 2, 1]
    assert from_json(to_json(model)) == model


def _model() -> dict[str, Any]:
    return to_json(parse_stack("mha(8, 2x4), mha(8, 4x2), gqa(8, 4/2x4) + mlp(3) x 5; vocab=7, tied"))


def _change(path: str, value: object) -> dict[str, Any]:
    """The model with the place `path` (keys and indices by dots) set to `value`, or removed where that is None."""
    found = _model()
    here: Any = found
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in way:
        here = here[step]
    if value is None:
        del here[last]
    else:
        here[last] = value
    return found


@pytest.mark.parametrize(
    ("path", "value", "parts"),
    [
        ("schema", None, ["schema", SCHEMA, "None"]),
        ("schema", "manyheads.spec/2", [SCHEMA, "manyheads.spec/2"]),
        ("type", "Model", ["Model", "StackSpec"]),
        ("type", None, ["type", "AttentionSpec"]),
        ("colour", "red", ["colour", "StackSpec"]),
        ("vocab_size", "7", ["vocab_size", "integer", "'7'"]),
        ("vocab_size", True, ["vocab_size", "integer", "True"]),
        ("vocab_size", -7, ["vocab_size", "-7"]),
        ("stacks", {}, ["stacks must be a list"]),
        ("stacks.0", 3, ["stacks[0] must be an object (Stack)", "3"]),
        ("stacks.0.role", 3, ["stacks[0].role must be a string"]),
        ("stacks.0.role", "coder", ["stacks[0]: ", "coder", "encoder"]),
        (
            "stacks.0.blocks.1.attentions.0.kv.head_dim",
            None,
            ["stacks[0].blocks[1].attentions[0].kv.head_dim is missing"],
        ),
        ("stacks.0.blocks.1.attentions.0.kv.head_dim", 2.5, ["stacks[0].blocks[1].attentions[0].kv.head_dim", "2.5"]),
        ("stacks.0.blocks.1.attentions.0.kv.rank", 4, ["stacks[0].blocks[1].attentions[0].kv.rank", "Heads"]),
        ("stacks.0.blocks.1.attentions.0.kv.type", "Head", ["attentions[0].kv has type 'Head'; did you mean Heads?"]),
        ("stacks.0.blocks.1.attentions.0.kv.type", "Norm", ["attentions[0].kv has type 'Norm'", "Latent"]),
        ("stacks.0.blocks.1.attentions.0.kv.type", None, ["attentions[0].kv has type None", "Latent"]),
        ("stacks.0.blocks.1.attentions.0.kv.num_kv_heads", 3, ["stacks[0].blocks[1].attentions[0]: ", "4", "3"]),
        ("stacks.0.blocks.1.attentions.0.scale", float("nan"), ["stacks[0].blocks[1].attentions[0]: ", "nan"]),
        ("stacks.0.blocks.1.attentions.0.scale", 10**400, ["scale", "10000"]),
        ("stacks.0.blocks.1.attentions.0.scale", "1", ["attentions[0].scale must be a number"]),
        ("stacks.0.blocks.1.attentions.0.sinks", 1, ["attentions[0].sinks must be true or false"]),
        ("stacks.0.blocks.1.attentions.0.d_model", 9, ["8", "9"]),
        ("stacks.0.blocks.2.repeat", 0, ["stacks[0].blocks[2].repeat", "0"]),
        ("stacks.0.blocks.2.repeat", 10**9, ["stacks[0].blocks[2].repeat", "1000000002", "10000"]),
        ("stacks.0.blocks.2.repeat", "5", ["stacks[0].blocks[2].repeat", "'5'"]),
        ("stacks.0.blocks.2.items", [], ["stacks[0].blocks[2]", "items"]),
        ("stacks.0.blocks.2.items", None, ["stacks[0].blocks[2]", "items"]),
        ("stacks.0.blocks.2.items.0.mlp.width", [], ["stacks[0].blocks[2].items[0].mlp.width", "integer"]),
        ("stacks.0.blocks.2.items.0.mlp", 4, ["stacks[0].blocks[2].items[0].mlp", "Mlp, Moe"]),
    ],
)
def test_complaints_name_the_path(path: str, value: object, parts: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        from_json(_change(path, value))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    for part in parts:
        assert part in message


@pytest.mark.parametrize("value", [None, 3, "gqa(4096, 32/8)", [], [1], True])
def test_not_an_object(value: object) -> None:
    with pytest.raises(SpecError, match="must be an object"):
        from_json(value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "broken JSON"),
        ("{", "broken JSON"),
        ("[" * 100_000, "nested too deep"),
        ('{"schema": NaN}', "NaN is no number"),
        ('{"schema": "' + SCHEMA + '", "schema": 1}', "'schema' is given twice"),
        ('{"schema": ' + "9" * 5000 + "}", "broken JSON"),
        ('{"schema": ' + "[" * 900 + "]" * 900 + "}", "schema must be"),
    ],
)
def test_broken_json(text: str, part: str) -> None:
    with pytest.raises(SpecError, match=part) as caught:
        from_json_text(text)
    assert "\n" not in str(caught.value)


def test_only_descriptions_are_written() -> None:
    with pytest.raises(SpecError, match="Heads"):
        to_json(Heads(1, 2, 3))  # type: ignore[arg-type]


def _places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [place for step, item in steps for place in [(*way, step), *_places(item, (*way, step))]]


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(models(), st.data())
def test_mutated_json_never_crashes(model: Any, data: st.DataObject) -> None:
    written = copy.deepcopy(to_json(model))
    way = data.draw(st.sampled_from(_places(written)))
    here: Any = written
    for step in way[:-1]:
        here = here[step]
    if data.draw(st.booleans()):
        here[way[-1]] = data.draw(_junk)
    else:
        del here[way[-1]]
    message = ""
    try:
        from_json(json.loads(json.dumps(written)))
    except SpecError as error:
        message = str(error)
    assert "\n" not in message
