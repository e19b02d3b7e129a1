"""Mutated configurations and headers: a ManyheadsError or a valid model, nothing else, and quickly."""

from __future__ import annotations

import json
import math
import struct
import time
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyheads.checkpoints import open_model, read_config
from manyheads.checkpoints.families import named
from manyheads.checkpoints.layout import expected_tensors
from manyheads.errors import ManyheadsError
from manyheads.facts.census import census
from manyheads.spec import StackSpec, count, weights

FIXTURES = Path(__file__).parent / "fixtures"
TINY = json.loads((FIXTURES / "tiny_models.json").read_text())
SOURCES: list[dict[str, Any]] = [
    *(json.loads(path.read_text()) for path in sorted((FIXTURES / "configs").glob("*.json"))),
    *({"model_type": case["model_type"], **case["settings"]} for part in TINY.values() for case in part.values()),
    *(dict(entry.config) for entry in census()[::5]),
]
SECONDS = 2.0

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.sampled_from([2**31, 2**40, 2**63, 10**30, -(10**30)]),
    st.sampled_from([0.0, 32.5, 4096.0, -1.0, math.nan, math.inf, -math.inf, 1e308]), st.text(max_size=6),
    st.sampled_from(["full_attention", "sliding_attention", "mamba", "default", "yarn", "llama3", "LLG", "4096"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=7), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)
EXTRA = st.sampled_from(
    ["layer_types", "sliding_window", "sliding_window_pattern", "rope_scaling", "rope_parameters", "head_dim", "kv_lora_rank",
     "num_key_value_heads", "no_rope_layers", "num_kv_shared_layers", "attention_chunk_size", "num_experts", "q_lora_rank",
     "text_config", "quantization_config", "tie_word_embeddings", "model_type", "first_k_dense_replace", "mlp_only_layers",
     "decoder_sparse_step", "partial_rotary_factor", "attn_config", "vocab_size", "rms_norm_eps", "torch_dtype"]
)  # fmt: skip


def told(error: ManyheadsError) -> None:
    """Every refusal is one line, and not a page long."""
    message = str(error)
    assert "\n" not in message
    assert 0 < len(message) < 1000


def check(config: Any) -> None:
    start = time.perf_counter()
    for assume in ("", "full"):
        try:
            found = read_config(config, source="fuzzed", assume=assume)
        except ManyheadsError as error:
            told(error)
            continue
        assert isinstance(found.stack, StackSpec)
        assert count(weights(found.stack)) > 0
    assert time.perf_counter() - start < SECONDS


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_mutated_config_is_refused_or_read(data: st.DataObject) -> None:
    config = dict(data.draw(st.sampled_from(SOURCES)))
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.one_of(st.sampled_from(sorted(config) or ["x"]), EXTRA))
        if data.draw(st.booleans()):
            config.pop(key, None)
        else:
            config[key] = data.draw(VALUES)
    check(config)


@settings(max_examples=150)
@given(st.data())
def test_a_mutated_rotary_setting_is_refused_or_read(data: st.DataObject) -> None:
    config = dict(data.draw(st.sampled_from([s for s in SOURCES if s.get("rope_scaling") or s.get("rope_parameters")])))
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    inner = dict(config[key])
    inner[data.draw(st.sampled_from([*sorted(inner), "factor", "rope_type", "attention_factor", "truncate"]))] = (
        data.draw(VALUES)
    )
    config[key] = inner
    check(config)


@settings(max_examples=100)
@given(VALUES)
def test_anything_at_all_is_refused_or_read(value: Any) -> None:
    check(value)


@settings(max_examples=100)
@given(st.dictionaries(st.one_of(st.text(max_size=8), EXTRA), VALUES, max_size=6))
def test_any_object_is_refused_or_read(config: dict[str, Any]) -> None:
    check(config)


@pytest.mark.parametrize("size", [10**4, 10**6])
def test_long_lists_do_not_hang(size: int) -> None:
    check({**SOURCES[0], "layer_types": ["full_attention"] * size})
    check({**SOURCES[0], "mlp_only_layers": list(range(size)), "num_experts": 4, "num_experts_per_tok": 2})


def model_file(folder: Path, entries: dict[str, tuple[int, ...]], config: dict[str, Any]) -> None:
    header, position = {}, 0
    for name, shape in entries.items():
        header[name] = {"dtype": "F8_E4M3", "shape": list(shape), "data_offsets": [position, position + prod(shape)]}
        position += prod(shape)
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(position))
    (folder / "config.json").write_text(json.dumps(config))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_header_is_accepted_only_as_what_the_config_says(data: st.DataObject, tmp_path: Path) -> None:
    name = data.draw(st.sampled_from([n for n in TINY["decoders"] if n != "opt-350m"]))
    case = TINY["decoders"][name]
    config = {"model_type": case["model_type"], **case["settings"]}
    found = read_config(config)
    entries = {key: item.shape for key, item in expected_tensors(named(found.family), found.stack).items()}
    whole = dict(entries)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(entries)))
        action = data.draw(st.sampled_from(["drop", "reshape", "rename", "transpose"]))
        shape = entries.pop(key)
        if action == "reshape":
            entries[key] = tuple(data.draw(st.lists(st.integers(0, 9), max_size=3)))
        elif action == "rename":
            entries[key + data.draw(st.text("abc.", min_size=1, max_size=3))] = shape
        elif action == "transpose":
            entries[key] = shape[::-1]
    model_file(tmp_path, entries, config)
    start = time.perf_counter()
    try:
        read = open_model(tmp_path)
    except ManyheadsError as error:
        told(error)
    else:
        bare = {key: shape for key, shape in whole.items() if not key.startswith(("lm_head", "embed_out"))}
        assert entries in (whole, bare)  # nothing wrong gets through: only an undone change, or a missing head
        assert read.parameters_stored is not None
    assert time.perf_counter() - start < SECONDS
