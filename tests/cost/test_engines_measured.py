"""Predicted bytes of transformers' caches against caches of tiny random models, to the byte."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import held_models as tiny_models  # noqa: E402
from manyheads.cost.engines import engine_answers  # noqa: E402

# Shorter than the window, one less, equal, one more, more than twice.
PROMPTS = (3, tiny_models.WINDOW - 1, tiny_models.WINDOW, tiny_models.WINDOW + 1, 2 * tiny_models.WINDOW + 1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def predicted(tiny: tiny_models.Tiny, context: int):
    return engine_answers(
        tiny.spec, context=context, batch=tiny_models.BATCH, kv_dtype=tiny.dtype, source_tokens=tiny.source_tokens
    )


@pytest.mark.parametrize("tiny", tiny_models.MODELS, ids=lambda tiny: tiny.name)
def test_transformers_holds_what_is_predicted(tiny: tiny_models.Tiny) -> None:
    model = tiny_models.build(tiny)
    for prompt in PROMPTS:
        dynamic = predicted(tiny, prompt)[0].details
        prefill, step = tiny_models.dynamic_bytes(model, tiny, prompt)
        assert prefill == (dynamic["logical_prefill_bytes"], dynamic["storage_prefill_bytes"]), prompt
        assert step == (dynamic["logical_step_bytes"], dynamic["storage_step_bytes"]), prompt
        static = predicted(tiny, prompt + 1)[1].bytes
        assert tiny_models.static_bytes(model, tiny, prompt) == ((static, static), (static, static)), prompt


def test_a_window_of_one_is_kept_whole() -> None:
    mistral = next(tiny for tiny in tiny_models.MODELS if tiny.name == "mistral")
    settings = mistral.settings | {"sliding_window": 1}
    spec = tiny_models.stack(*[tiny_models.heads(2, mask=tiny_models.Window(1))] * 3)
    tiny = tiny_models.Tiny("mistral", "window of 1", mistral.config, settings, spec, "fp32")
    details = predicted(tiny, 9)[0].details
    _, step = tiny_models.dynamic_bytes(tiny_models.build(tiny), tiny, 9)
    assert step == (details["logical_step_bytes"], details["storage_step_bytes"])
    assert step[0] == 2 * 3 * 10 * 2 * 16 * 4
