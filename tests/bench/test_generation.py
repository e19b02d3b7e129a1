"""Whole models token by token: who is right gets a time, and the time has parts."""

from __future__ import annotations

import pytest
import torch

from manyheads.bench.data import generation_data
from manyheads.bench.generation import generation
from manyheads.bench.generation_tables import generation_tables
from manyheads.bench.parts import ATTENTION, CACHE, HEAD, LINEAR, watching
from manyheads.bench.runners import LLAMA_CPP, LlamaCppRunner, TransformersRunner, clock, find_runners
from manyheads.report.jsonform import encode

pytest.importorskip("transformers")

from support import tiny_transformers

CACHED, PROMPT = (4, 40), 9


@pytest.fixture(scope="module")
def model():
    return tiny_transformers.build("llama", attention="sdpa", max_position_embeddings=128)


class Deaf(TransformersRunner):
    """Hears every token as the one before it."""

    def logits(self, token):
        return super().logits(token - 1)


def told(model, plan, runners, absent=None):
    return generation(
        "tiny", model, runners, absent or {}, plan, dtype="fp32", tokens=3, rounds=2, cached=CACHED, prompt=PROMPT
    )


def test_every_way_is_right_and_timed(model, plan):
    runners, absent = find_runners(model, 1, gguf="", context=64)
    assert runners[0].name == "transformers sdpa"
    assert {way.name for way in runners} == {"transformers sdpa", "transformers eager", "manyheads"}
    found = told(model, plan, runners, absent)
    config = model.config
    assert found.bytes_a_token == config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 4
    assert found.extra_floor_seconds == (40 - 4) * found.bytes_a_token / found.bandwidth
    for way in found.ways[: len(runners)]:
        assert [times.cached for times in way.times] == [4, 40]
        assert all(times.error < 1e-5 and len(times.seconds) == 2 * 3 for times in way.times)
        assert set(way.first_seconds) >= {PROMPT, 4}
        assert way.extra_seconds == way.times[1].median - way.times[0].median
    assert found.ways[-1].name == LLAMA_CPP
    assert found.ways[-1].reason


def test_a_wrong_way_gets_no_time(model, plan):
    right = find_runners(model, 1, gguf="", context=64)[0][0]
    deaf = Deaf("deaf", 1, model, "eager", right.make_cache)
    found = told(model, plan, [right, deaf])
    wrong = found.ways[1]
    assert [times.seconds for times in wrong.times] == [(), ()]
    assert all(times.error > 0.1 and "disagrees with float64" in times.reason for times in wrong.times)
    assert wrong.extra_seconds is None
    assert wrong.parts == {}
    row = generation_tables(found)[0].rows[1]
    assert row[:4] == ("deaf", "1", "disagrees", "disagrees")
    assert found.ways[0].times[0].seconds


def test_as_json(model, plan):
    runners, absent = find_runners(model, 1, gguf="", context=64)
    data = generation_data(told(model, plan, runners, absent))
    assert encode(data)
    assert set(data["ways"][0]) == {
        "name", "threads", "reason", "extra_seconds", "first_token_seconds", "tokens", "parts_seconds"
    }  # fmt: skip
    assert generation_data(None) is None


def test_what_is_read_stays_read(model):
    way = find_runners(model, 1, gguf="", context=64)[0][0]
    way.read([5, 6, 7, 8])
    before = way.logits(9)
    assert len(way.tokens(9, 4)) == 4
    assert way.cache.get_seq_length() == 4
    assert way.logits(9).equal(before)


def test_the_parts_of_a_forward(model):
    """Every linear layer, the output layer and every attention is met, and no time is counted twice."""
    with watching(model) as watch, torch.no_grad():
        import time

        began = time.perf_counter()
        model(torch.tensor([[5, 6, 7]]), use_cache=False)
        whole = time.perf_counter() - began
    assert all(watch.seconds[part] > 0 for part in (LINEAR, HEAD, ATTENTION))
    assert CACHE not in watch.seconds
    assert 0 < sum(watch.seconds.values()) <= whole
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_clock_never_stops_anything(model):
    at: list[float] = []
    ids = torch.tensor([[5, 6, 7]])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, min_new_tokens=5, stopping_criteria=[clock(at)],
        do_sample=False, pad_token_id=0,
    )  # fmt: skip
    assert out.shape[1] == 8
    assert len(at) == 5
    assert at == sorted(at)


@pytest.mark.real
def test_llama_cpp_forgets_what_came_after_the_prompt(smollm2_file):
    pytest.importorskip("llama_cpp")
    way = LlamaCppRunner(smollm2_file, 1, 256)

    def after() -> torch.Tensor:
        way._llama.eval([5])
        logits = torch.tensor(way._llama._ctx.get_logits_ith(-1)[: way._llama.n_vocab()])
        way._rewind()
        return logits

    assert way.read([7, 8, 9, 10]) > 0
    before = after()
    assert len(way.tokens(5, 3)) == 3
    assert after().equal(before)
