"""Models that write through `manyheads.enable` and our caches: token by token what transformers writes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import DynamicCache, EncoderDecoderCache, cache_utils

import manyheads
from manyheads.cost.dtypes import CACHE_DTYPES
from manyheads.errors import BackendError, SpecError
from manyheads.layer import backends
from manyheads.models.caches.hybrid import HybridLayer
from manyheads.models.caches.layers import FullLayer, WindowLayer
from manyheads.models.door import absorbed_mla
from manyheads.models.door.door import open_door
from manyheads.ops import deferred
from manyheads.ops.answer import Yes
from support import rounding
from support.tiny_transformers import CASES, build, inputs, logits

# Families that differ in how they attend or what they cache; through the kernel below, the heads of 10 elements.
FAMILIES = [
    "llama", "mistral", "qwen2", "qwen3_moe", "gemma2", "gemma3_text", "olmo2", "phi3", "granite", "cohere2", "gpt2",
    "gpt_neox", "gptj", "opt", "gpt_oss", "deepseek_v2", "deepseek_v3", "minicpm3", "qwen3_next", "jamba", "t5", "bart",
    "whisper", "falcon-40b", "bloom",
]  # fmt: skip
WIDE: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 10}, "mistral": {"head_dim": 10}, "gemma2": {"head_dim": 10}, "gpt_oss": {"head_dim": 10},
    "gpt2": {"n_embd": 60}, "deepseek_v3": {}, "t5": {"d_kv": 10, "d_model": 48},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _disabled_afterwards() -> Iterator[None]:
    yield
    manyheads.disable()


@pytest.fixture
def always_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the context."""
    monkeypatch.setattr(backends, "_is_long_enough", lambda *_: Yes())


def prompts(name: str, *, batch: int = 2, tokens: int = 9) -> dict[str, Any]:
    return {key: x for key, x in inputs(name, batch=batch, tokens=tokens).items() if not key.startswith("decoder")}


def write(model: Any, batch: dict[str, Any], **options: Any) -> torch.Tensor:
    torch.manual_seed(11)
    options = {"do_sample": False, "max_new_tokens": 12, "min_new_tokens": 12, "use_cache": True, **options}
    return model.generate(**batch, pad_token_id=0, **options)


def ways(model: Any, batch: dict[str, Any], **options: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The same call through our caches by hand, mapped in, and with our attention; the model is left as it was."""
    yield "cache()", write(model, batch, cache=manyheads.cache(model), **options)
    manyheads.enable(cache=True)
    yield "enable(cache=True)", write(model, batch, **options)
    if model.config.model_type not in ("falcon", "bloom", "mpt"):
        before = model.config._attn_implementation
        model.set_attn_implementation("manyheads")
        yield "manyheads, enable(cache=True)", write(model, batch, **options)
        yield "manyheads, cache()", write(model, batch, cache=manyheads.cache(model), **options)
        manyheads.disable()
        manyheads.enable()
        yield "manyheads, enable()", write(model, batch, **options)
        model.set_attn_implementation(before)
    manyheads.disable()


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy(name: str) -> None:
    model, batch = build(name), prompts(name)
    expected = write(model, batch)
    for way, found in ways(model, batch):
        assert torch.equal(found, expected), way


OPTIONS: dict[str, dict[str, Any]] = {
    "sampling": {"do_sample": True, "top_k": 20},
    "beams": {"num_beams": 3},
    "beams and sampling": {"num_beams": 2, "do_sample": True, "num_return_sequences": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "assisted": {"assistant": True},
}


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "t5"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_other_ways_to_write(name: str, kind: str) -> None:
    options = dict(OPTIONS[kind])
    if options.pop("assistant", None):
        if name == "t5":
            pytest.skip("transformers asks for an encoder of the assistant's own")
        options["assistant_model"] = build(name, intermediate_size=20)
    model, batch = build(name), prompts(name, batch=1 if kind in ("prompt lookup", "assisted") else 2)
    expected = write(model, batch, **options)
    for way, found in ways(model, batch, **options):
        assert torch.equal(found, expected), way


@pytest.mark.usefixtures("always_kernel")
@pytest.mark.parametrize("name", WIDE)
def test_through_the_kernel(name: str) -> None:
    """Greedy, left-padded, beams and prompt lookup; in all but the first step the kernel attends."""
    model = build(name, **WIDE[name])
    batch, one = prompts(name), prompts(name, batch=1)
    padded = {**batch, "attention_mask": (torch.arange(9) >= torch.tensor([[0], [4]])).long()}
    calls = [(batch, {}), (padded, {}), (batch, {"num_beams": 2}), (one, {"prompt_lookup_num_tokens": 3})]
    expected = [write(model, each, **options) for each, options in calls]
    manyheads.enable(cache=True)
    model.set_attn_implementation("manyheads")
    for wanted, (each, options) in zip(expected, calls, strict=True):
        with open_door(model) as door:
            assert torch.equal(write(model, each, **options), wanted), options
        selected = {path: how.name for path, how in door.selected.items() if "encoder" not in path}
        assert set(selected.values()) == {"kernel"}, door.selected


@pytest.mark.usefixtures("always_kernel")
@pytest.mark.filterwarnings("ignore:manyheads. an int8 cache of latents")
@pytest.mark.parametrize("name", ["llama", "gemma2", "deepseek_v3", "t5"])
def test_formats(name: str) -> None:
    """fp32 is exact; 16 bits and int8 move logits by about what they round, in whole prompts and step by step alike."""
    model, ids = build(name, **WIDE[name]), prompts(name, tokens=24)
    manyheads.enable()
    model.set_attn_implementation("manyheads")
    if name == "t5":
        expected = write(model, ids)
        assert torch.equal(write(model, ids, cache=manyheads.cache(model, dtype="fp32")), expected)
        for dtype in ("bf16", "fp16", "int8"):
            found = write(model, ids, cache=manyheads.cache(model, dtype=dtype))
            assert (found == expected).float().mean() > 0.5
        return
    exact = rounding.model(model, ids)
    spread = float(exact.value.std())
    bounds = dict(zip(CACHE_DTYPES, (None, None, 0.06, 0.01, 0.12), strict=True))
    for dtype, bound in bounds.items():
        for steps in ([24], [1] * 24, [7, 1, 16]):
            cache, got, at = manyheads.cache(model, dtype=dtype), [], 0
            for step in steps:
                got.append(logits(model, {"input_ids": ids["input_ids"][:, at : at + step]}, cache=cache))
                at += step
            error = float((torch.cat(got, 1).double() - exact.value).square().mean().sqrt()) / spread
            assert exact.holds(torch.cat(got, 1)) if bound is None else error < bound, (dtype, steps, error)


@pytest.mark.parametrize("name", FAMILIES[:20])
def test_cached_is_uncached(name: str) -> None:
    """Cases O14, O58 and O59: whole, in chunks, token by token, through our attention and our cache."""
    model, ids = build(name), inputs(name, tokens=16)["input_ids"]
    exact = rounding.model(model, {"input_ids": ids}, use_cache=False)
    manyheads.enable()
    model.set_attn_implementation("manyheads")
    states = name in ("qwen3_next", "jamba")  # transformers' linear layers go on one token at a time
    for steps in ([16], [5, 1, 1, 1] + [1] * 8 if states else [5, 1, 7, 3], [1] * 16):
        cache, got, at = manyheads.cache(model), [], 0
        for step in steps:
            got.append(logits(model, {"input_ids": ids[:, at : at + step]}, cache=cache, use_cache=True))
            at += step
        assert exact.holds(torch.cat(got, 1)), steps


def test_layers_are_ours_while_enabled_and_theirs_afterwards() -> None:
    before = dict(cache_utils.DYNAMIC_LAYER_TYPE_MAPPING)
    config = build("gemma2").config
    for _ in range(2):
        manyheads.enable(cache=True)
        assert {type(layer) for layer in DynamicCache(config=config).layers} == {FullLayer, WindowLayer}
    manyheads.disable()
    assert before == cache_utils.DYNAMIC_LAYER_TYPE_MAPPING
    assert "FullLayer" not in repr(DynamicCache(config=config))
    manyheads.enable()
    assert before == cache_utils.DYNAMIC_LAYER_TYPE_MAPPING


def test_a_cache_for_each_kind_of_model() -> None:
    assert [type(layer) for layer in manyheads.cache(build("mistral")).layers] == [WindowLayer] * 3
    assert isinstance(manyheads.cache(build("bart")), EncoderDecoderCache)
    hybrid = manyheads.cache(build("jamba")).layers
    assert FullLayer in {type(layer) for layer in hybrid}
    assert HybridLayer.__mro__.index(FullLayer) > 0
    with pytest.raises(SpecError, match="dtype 'fp8' is not one of model, fp32, bf16, fp16, int8"):
        manyheads.cache(build("llama"), dtype="fp8")
    with pytest.raises(BackendError, match="a cache is made for a model of transformers, found Linear"):
        manyheads.cache(torch.nn.Linear(2, 2))


def test_loaded_with_the_name(tmp_path: Any) -> None:
    import transformers

    build("llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="manyheads"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="manyheads")
    manyheads.enable()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="manyheads").eval()
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(write(model, prompts("llama")), write(plain, prompts("llama")))


def test_not_taken_away_while_a_door_is_open() -> None:
    model = build("llama")
    with open_door(model), pytest.raises(BackendError, match="1 doors are open"):
        manyheads.disable()


class TestLatents:
    """MLA through the absorbed-MLA patch."""

    def test_decode_absorbs_and_prefill_expands(self) -> None:
        model, ids = build("deepseek_v3"), inputs("deepseek_v3", tokens=12)["input_ids"]
        exact = rounding.model(model, {"input_ids": ids})
        model.set_attn_implementation("eager")
        with absorbed_mla.absorbed_mla(model), open_door(model) as door:
            cache = manyheads.cache(model)
            first = logits(model, {"input_ids": ids[:, :8]}, cache=cache)
            assert {how.name for how in door.selected.values()} == {"sdpa"}
            assert "nothing is cached yet" in next(iter(door.selected.values())).reason
            rest = [logits(model, {"input_ids": ids[:, at : at + 2]}, cache=cache) for at in (8, 10)]
            assert {how.name for how in door.selected.values()} == {"kernel"}
        assert exact.holds(torch.cat([first, *rest], 1))
        assert not any("expand_kv" in module.__dict__ for module in model.modules())

    def test_the_heads_are_never_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, ids = build("deepseek_v2"), inputs("deepseek_v2", tokens=8)["input_ids"]
        manyheads.enable()
        model.set_attn_implementation("manyheads")
        cache = manyheads.cache(model)
        logits(model, {"input_ids": ids}, cache=cache)
        made: list[int] = []
        attention = type(model.model.layers[0].self_attn)
        own = attention.expand_kv
        monkeypatch.setattr(attention, "expand_kv", lambda *words: made.append(words[1].shape[2]) or own(*words))
        logits(model, {"input_ids": ids[:, :1]}, cache=cache)
        assert made == []
        manyheads.disable()
        model.set_attn_implementation("eager")
        logits(model, {"input_ids": ids[:, :1]}, cache=cache)
        assert made == [10, 10, 10]

    def test_a_copy_of_the_model_uses_its_own_weights(self) -> None:
        model, ids = build("deepseek_v3"), inputs("deepseek_v3", tokens=8)["input_ids"]
        manyheads.enable()
        model.set_attn_implementation("manyheads")
        write(model, {"input_ids": ids})
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            parameter.data.mul_(0.7)
        found = write(other, {"input_ids": ids})
        other.set_attn_implementation("eager")
        assert torch.equal(found, write(other, {"input_ids": ids}))

    def test_int8_latents_are_dequantized_and_it_says_so(self) -> None:
        model, batch = build("deepseek_v3"), prompts("deepseek_v3")
        manyheads.enable()
        model.set_attn_implementation("manyheads")
        deferred._warned.clear()
        with pytest.warns(UserWarning, match="an int8 cache of latents is dequantized at every step"):
            write(model, batch, cache=manyheads.cache(model, dtype="int8"))

    def test_gradients_go_through_the_models_own_way(self) -> None:
        model, batch = build("deepseek_v3"), inputs("deepseek_v3")
        model(**batch)[0].square().mean().backward()
        expected = model.model.layers[0].self_attn.kv_b_proj.weight.grad.clone()
        model.zero_grad()
        with absorbed_mla.absorbed_mla(model), open_door(model):
            model(**batch)[0].square().mean().backward()
        assert torch.allclose(model.model.layers[0].self_attn.kv_b_proj.weight.grad, expected, rtol=1e-3, atol=1e-6)

    def test_what_cannot_be_absorbed_is_refused_with_the_reason(self) -> None:
        model = build("deepseek_v3")
        attention = model.model.layers[1].self_attn
        attention.kv_b_proj = torch.nn.Sequential(attention.kv_b_proj)
        with pytest.raises(BackendError, match=r"layers.1.self_attn: kv_b_proj is a Sequential, .* at each step"):
            absorbed_mla.patch(model)
        assert not any("expand_kv" in module.__dict__ for module in model.modules())
        with (
            pytest.raises(BackendError, match="no attention that keeps latents"),
            absorbed_mla.absorbed_mla(build("llama")),
        ):
            pass

    def test_an_expansion_of_another_kind_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = build("deepseek_v3")
        attention = model.model.layers[0].self_attn
        own = type(attention).expand_kv
        monkeypatch.setattr(type(attention), "expand_kv", lambda self, c, r: own(self, c.tanh(), r))
        assert "is not [W_k c ; r]" in absorbed_mla.patch_refusal(attention)

    def test_enabled_says_so_once_and_goes_on(self) -> None:
        model, batch = build("deepseek_v3"), prompts("deepseek_v3")
        expected = write(model, batch)
        for layer in model.model.layers:
            layer.self_attn.kv_b_proj = torch.nn.Sequential(layer.self_attn.kv_b_proj)
        manyheads.enable()
        model.config._attn_implementation_internal = "manyheads"
        deferred._warned.clear()
        with pytest.warns(UserWarning, match="kv_b_proj is a Sequential"):
            assert torch.equal(write(model, batch), expected)


def test_the_families_are_in_the_table() -> None:
    assert set(FAMILIES) | set(WIDE) <= set(CASES)
