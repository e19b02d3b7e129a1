"""The record of removed heads in a configuration: read without torch, and priced."""

from __future__ import annotations

from typing import Any

import pytest

from manyheads.checkpoints.config import read_config
from manyheads.checkpoints.pruned import KEY, LayerHeads, Pruning, read_pruning, shrunk
from manyheads.cost.model import cache_bytes
from manyheads.cost.workload import Workload
from manyheads.errors import CheckpointError
from manyheads.spec.inventory import count, weights

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 3, "head_dim": 8, "vocab_size": 100, "tie_word_embeddings": True,
}  # fmt: skip


def record(form: str = "compact", slots: tuple[int, ...] = (0, 1), kv_slots: tuple[int, ...] = (0,)) -> dict[str, Any]:
    return Pruning(form, (("decoder", 1, LayerHeads(6, 3, slots, kv_slots)),)).as_json()


def test_a_compact_model_is_smaller_layer_by_layer() -> None:
    whole, pruned = read_config(CONFIG), read_config({**CONFIG, KEY: record()})
    first, second = (block.attention for block in pruned.stack.main.blocks)
    assert (first.num_heads, first.kv.num_kv_heads) == (6, 3)
    assert (second.num_heads, second.kv.num_kv_heads) == (2, 1)
    # Four query heads of q and o, two key/value heads of k and v, each 8 x 48.
    assert count(weights(whole.stack)) - count(weights(pruned.stack)) == (2 * 4 + 2 * 2) * 8 * 48
    held = cache_bytes(pruned.stack, Workload(10, kv_dtype="fp32")).total
    assert held == 10 * (3 + 1) * 2 * 8 * 4
    assert pruned.notes[-1] == "pruned by manyheads (compact): 4 heads of the original model are gone"
    assert pruned.unknown_keys == ()


@pytest.mark.parametrize("form", ["padded", "uniform"])
def test_other_forms_say_their_counts_in_the_configuration_itself(form: str) -> None:
    slots = (0, 1, -1, -1, -1, -1)
    pruned = read_config({**CONFIG, KEY: record(form, slots, (0, -1, -1))})
    assert pruned.stack == read_config(CONFIG).stack
    assert "4 heads of the original model are gone" in pruned.notes[-1]


def test_the_record_is_read_as_it_was_written() -> None:
    stack = read_config(CONFIG).stack
    made = read_pruning({KEY: record()}, stack)
    assert made is not None
    assert made.as_json() == record()
    assert made.at("decoder", 1) == LayerHeads(6, 3, (0, 1), (0,))
    assert made.at("decoder", 0) is None
    assert shrunk(stack, made) == read_config({**CONFIG, KEY: record()}).stack
    assert LayerHeads(6, 3, (0, -1, 4), (0,)).removed == (1, 2, 3, 5)
    assert read_pruning(CONFIG, stack) is None


@pytest.mark.parametrize(
    "broken",
    [
        "no", [], {"version": 1}, {"version": 1, "form": "compact", "layers": [3]},
        {"version": 1, "form": "compact", "layers": [{"stage": "decoder", "layer": "0"}]},
        record(slots=(0, True)), record(slots=()), record(slots=(0, 9)), record(slots=(0, -2)), record(kv_slots=(0, 1, 2)),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused_in_one_line(broken: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_config({**CONFIG, KEY: broken}, source="x/config.json")
    assert str(caught.value).startswith("x/config.json: manyheads_pruning")
    assert "\n" not in str(caught.value)


def test_a_layer_that_is_there_twice() -> None:
    twice = record()
    twice["layers"] *= 2
    with pytest.raises(CheckpointError, match="there twice"):
        read_config({**CONFIG, KEY: twice})
