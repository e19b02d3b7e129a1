"""The door: transformers' own models, unchanged by passing through it, and put back as they were."""

from __future__ import annotations

import contextvars
import copy
import threading
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from manyheads.errors import BackendError
from manyheads.models.door import door as doors
from manyheads.models.door.door import Call, open_door
from support import rounding
from support.tiny_transformers import CASES, build, inputs, logits

# The 22 families of which a ten-line function was seen to change nothing, and the number of attention modules of each.
FAMILIES = {
    "llama": 3, "mistral": 3, "gpt2": 2, "gpt_neox": 2, "gptj": 2, "opt": 2, "phi3": 2, "qwen2": 4, "qwen3": 3,
    "qwen3_next": 1, "gemma": 2, "gemma2": 5, "gemma3_text": 7, "gpt_oss": 4, "deepseek_v2": 3, "deepseek_v3": 3,
    "mixtral": 2, "jamba": 2, "bert": 2, "t5": 3 + 2 * 2, "marian": 3 + 2 * 2, "whisper": 3 + 2 * 2,
}  # fmt: skip
MORE = {"bart": 7, "roberta": 2, "distilbert": 2, "modernbert": 4, "t5-encoder": 2, "cohere2": 5, "olmo3": 5, "phi": 2}


def root_mean_square(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


@pytest.mark.parametrize(("name", "layers"), {**FAMILIES, **MORE}.items())
def test_logits_are_the_models_own(name: str, layers: int) -> None:
    model, batch = build(name), inputs(name)
    before, exact = logits(model, batch), rounding.model(model, batch)
    for implementation in ("auto", "plain", "tiled", "sdpa"):
        with open_door(model, implementation=implementation) as door:
            after = logits(model, batch)
            logits(model, batch)
        assert exact.holds(after), implementation
        assert list(door.calls.values()) == [2] * layers  # layers x forwards
        assert (door.uncalled(), door.outside) == ((), ())
    assert torch.equal(logits(model, batch), before)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_in_float64(name: str) -> None:
    """And nothing of the model in float32, as its norms and its softmax would be: a difference has nowhere to hide."""
    model, batch = build(name, dtype=torch.float64), inputs(name, dtype=torch.float64)
    exact = rounding.model(model, batch, dtype=torch.float64)
    for implementation in ("plain", "tiled", "sdpa"):
        with open_door(model, implementation=implementation), rounding.Wide():
            assert exact.holds(logits(model, batch)), implementation


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "t5", "bert"])
def test_logits_in_bfloat16(name: str) -> None:
    """About as near to float64 as the model's own eager attention is, for every form.

    Over a thousand logits the root mean square tells the size of an error; the largest is chance.
    """
    batch = inputs(name)
    exact = rounding.model(build(name), batch).value
    model = build(name, dtype=torch.bfloat16)
    theirs = root_mean_square(logits(model, batch).double() - exact)
    for implementation in ("auto", "plain", "tiled", "sdpa"):
        with open_door(model, implementation=implementation):
            ours = logits(model, batch)
        assert ours.dtype == torch.bfloat16
        assert root_mean_square(ours.double() - exact) < 1.5 * theirs, implementation


@pytest.mark.parametrize("name", ["falcon-7b", "falcon-40b", "bloom", "mpt"])
def test_models_that_do_not_pass_are_refused_by_name(name: str) -> None:
    model = build(name)
    state = model.config._attn_implementation
    kind = CASES[name]["model_type"]
    with pytest.raises(BackendError, match=rf"ForCausalLM \({kind}\): its attention does not pass") as caught:
        open_door(model).__enter__()
    assert "\n" not in str(caught.value)
    assert model.config._attn_implementation == state


def test_a_plain_module_is_refused() -> None:
    with pytest.raises(BackendError, match="Linear: its attention does not pass"), open_door(torch.nn.Linear(3, 5)):
        pass


def settings(model: Any) -> list[tuple[Any, ...]]:
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    return [
        *((key, c._attn_implementation) for key, c in configs.items()),
        *((name, module.training) for name, module in model.named_modules()),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["llama", "t5", "whisper"])
def test_everything_is_put_back_after_an_exception_in_the_forward(name: str) -> None:
    model, batch = build(name, attention="sdpa"), inputs(name)
    model.get_submodule(next(n for n, _ in model.named_modules() if n.endswith("layers.1") or "block.1" in n)).train()
    before, answer = settings(model), logits(model.eval(), batch)
    model.get_submodule(next(n for n, _ in model.named_modules() if n.endswith("layers.1") or "block.1" in n)).train()

    def fail(call: Call, out: torch.Tensor) -> None:
        if call.layer == 1:
            raise RuntimeError("on purpose")

    modes: list[bool] = []
    watch = [lambda call, out: modes.extend(module.training for module in model.modules()), fail]
    with pytest.raises(RuntimeError, match="on purpose"), open_door(model, observers=watch, mode="eval"):
        model(**batch)
    assert modes
    assert not any(modes)
    assert settings(model) == before
    assert torch.equal(logits(model.eval(), batch), answer)
    assert doors._open == []


def test_two_models_of_one_config_share_its_setting_and_nothing_else() -> None:
    """The trap of from_config: the second model is sent to our function too, where no door knows it."""
    model = build("llama", attention="sdpa")
    other = transformers.AutoModelForCausalLM.from_config(model.config).eval()
    other.config = model.config
    assert other.model.layers[0].self_attn.config is model.config
    batch = inputs("llama")
    exact = rounding.model(other, batch)
    with open_door(model, gates=[lambda call, out: out * 0]) as door:
        assert exact.holds(logits(other, batch))
        assert set(door.calls.values()) == {0}
    assert model.config._attn_implementation == "sdpa"


def test_several_models_at_once() -> None:
    llama, gpt2 = build("llama"), build("gpt2")
    a, b = (rounding.model(model, inputs("llama")) for model in (llama, gpt2))
    with open_door(llama) as one, open_door(gpt2, gates=[lambda call, out: out * 0]) as two:
        assert a.holds(logits(llama, inputs("llama")))
        assert b.told(logits(gpt2, inputs("gpt2")))
    assert (sum(one.calls.values()), sum(two.calls.values())) == (3, 2)
    assert (llama.config._attn_implementation, gpt2.config._attn_implementation) == ("eager", "eager")


def test_doors_nest_on_one_model() -> None:
    model, batch = build("llama"), inputs("llama")
    exact, order = rounding.model(model, batch), []
    outer = open_door(model, implementation="plain", observers=[lambda call, out: order.append("outer")])
    with outer as first, open_door(model, observers=[lambda call, out: order.append("inner")]) as second:
        assert exact.holds(logits(model, batch))
        assert model.config._attn_implementation == doors.NAME
    assert order == ["inner", "outer"] * 3
    assert first.calls == second.calls == {f"model.layers.{i}.self_attn": 1 for i in range(3)}
    assert model.config._attn_implementation == "eager"


def test_the_outer_door_goes_on_after_the_inner_one_closed() -> None:
    model, batch = build("llama"), inputs("llama")
    with open_door(model) as outer:
        with pytest.raises(ValueError, match="inside"), open_door(model):
            raise ValueError("inside")
        logits(model, batch)
    assert set(outer.calls.values()) == {1}
    assert model.config._attn_implementation == "eager"


def test_doors_closed_in_another_order() -> None:
    model, batch = build("llama"), inputs("llama")
    first, second = open_door(model), open_door(model)
    one, two = first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    logits(model, batch)
    second.__exit__(None, None, None)
    assert (set(one.calls.values()), set(two.calls.values())) == ({0}, {1})
    assert model.config._attn_implementation == "eager"


def test_a_part_of_a_model_can_be_opened() -> None:
    model, batch = build("t5"), inputs("t5")
    with open_door(model.encoder) as door:
        logits(model, batch)
    assert door.calls == {f"block.{i}.layer.0.SelfAttention": 1 for i in range(3)}


def test_the_whole_and_a_part_each_by_its_own_names() -> None:
    model, batch = build("t5"), inputs("t5")
    seen: dict[str, list[str]] = {"whole": [], "part": []}
    with (
        open_door(model, observers=[lambda call, out: seen["whole"].append(call.path)]),
        open_door(model.encoder, observers=[lambda call, out: seen["part"].append(call.path)]),
    ):
        logits(model, batch)
    assert seen["part"] == [f"block.{i}.layer.0.SelfAttention" for i in range(3)]
    assert seen["whole"][:3] == [f"encoder.{name}" for name in seen["part"]]
    assert len(seen["whole"]) == 7


def test_threads_see_their_own_doors() -> None:
    """One thread silences the heads while the other runs the same model untouched; the last to leave restores."""
    model, batch = build("llama", attention="sdpa"), inputs("llama")
    exact = rounding.model(model, batch)
    inside, leave, found = threading.Event(), threading.Event(), {}

    def silence() -> None:
        with open_door(model, gates=[lambda call, out: out * 0]) as door:
            found["silent"] = logits(model, batch)
            inside.set()
            leave.wait(60)
        found["calls"] = sum(door.calls.values())

    thread = threading.Thread(target=silence)
    thread.start()
    assert inside.wait(60)
    with open_door(model) as mine:
        found["mine"] = logits(model, batch)
        leave.set()
        thread.join(60)
        found["after"] = logits(model, batch)
    assert model.config._attn_implementation == "sdpa"
    assert exact.told(found["silent"])
    assert exact.holds(found["mine"])
    assert exact.holds(found["after"])
    assert (found["calls"], sum(mine.calls.values())) == (3, 6)


def test_a_thread_may_be_taken_along() -> None:
    model, batch = build("llama"), inputs("llama")
    with open_door(model) as door:
        for carry in (False, True):
            run = contextvars.copy_context().run if carry else (lambda function, *words: function(*words))
            thread = threading.Thread(target=run, args=(logits, model, batch))
            thread.start()
            thread.join(60)
            assert set(door.calls.values()) == {int(carry)}


def test_registering_is_idempotent_and_reversible() -> None:
    interfaces = (transformers.AttentionInterface, transformers.AttentionMaskInterface)
    doors.unregister()
    before = [dict(interface._global_mapping) for interface in interfaces]
    doors.register_once()
    doors.register_once()
    assert [len(interface._global_mapping) for interface in interfaces] == [len(names) + 1 for names in before]
    with open_door(build("gpt2")), pytest.raises(BackendError, match="1 doors are open"):
        doors.unregister()
    doors.unregister()
    assert [dict(interface._global_mapping) for interface in interfaces] == before
    transformers.AttentionInterface.register(doors.NAME, print)
    try:
        with pytest.raises(BackendError, match="has another function called 'manyheads'"):
            doors.register_once()
    finally:
        transformers.AttentionInterface._global_mapping.pop(doors.NAME)
        doors.unregister()


def test_a_model_loaded_by_our_name_runs_without_a_door() -> None:
    doors.register_once()
    batch = inputs("qwen2")
    ours = build("qwen2", attention=doors.NAME)
    assert rounding.model(build("qwen2"), batch).holds(logits(ours, batch))
    with open_door(ours) as door:
        logits(ours, batch)
    assert set(door.calls.values()) == {1}
    assert ours.config._attn_implementation == doors.NAME


def test_a_copied_model_is_another_model() -> None:
    model, batch = build("llama"), inputs("llama")
    with open_door(model) as door:
        twin = copy.deepcopy(model)
        logits(twin, batch)
        assert set(door.calls.values()) == {0}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_a_compiled_model_is_refused() -> None:
    with pytest.raises(BackendError, match="compiled"), open_door(torch.compile(build("llama"))):
        pass


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own parts
def test_torch_compile_makes_one_graph_without_a_door_and_sees_one_that_is_opened() -> None:
    doors.register_once()
    model, batch = build("llama", attention=doors.NAME, num_hidden_layers=1), inputs("llama")
    exact = rounding.model(model, batch)
    whole, parts = torch.compile(model, backend="eager", fullgraph=True), torch.compile(model, backend="eager")
    assert exact.holds(logits(whole, batch))
    assert exact.holds(logits(parts, batch))
    with open_door(model, gates=[lambda call, out: out * 0]) as door:
        assert exact.told(logits(parts, batch))
    assert set(door.calls.values()) == {1}
    assert exact.holds(logits(parts, batch))
