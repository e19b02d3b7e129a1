"""What arrives at the attention function: every keyword understood, every mask read one way; gates, observers, forms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import DynamicCache, StaticCache
from transformers.masking_utils import causal_mask_function

import manyheads
from manyheads.errors import BackendError
from manyheads.layer.dispatch import attend
from manyheads.models.door.backends import Function
from manyheads.models.door.call import read_call
from manyheads.models.door.door import Call, open_door
from manyheads.models.door.mask import make_mask
from manyheads.ops import softmax
from manyheads.ops.answer import No, Yes
from support import rounding
from support.tiny_transformers import build, inputs, logits

TORCH = torch.Generator().manual_seed(3)


def tensors(queries: int = 5, keys: int = 5, heads: int = 6, kv_heads: int = 2) -> tuple[torch.Tensor, ...]:
    shapes = ((2, heads, queries, 4), (2, kv_heads, keys, 4), (2, kv_heads, keys, 3))
    return tuple(torch.randn(*shape, generator=TORCH, dtype=torch.float64) for shape in shapes)


def module(**attributes: Any) -> Any:
    found = torch.nn.Module()
    for name, value in attributes.items():
        setattr(found, name, value)
    return found


def read(mask: torch.Tensor | None = None, *, queries: int = 5, keys: int = 5, of: Any = None, **keywords: Any) -> Call:
    return read_call(of or module(is_causal=True), *tensors(queries, keys), mask, keywords)


def test_a_keyword_of_a_future_transformers_is_an_error_that_names_it() -> None:
    model, batch = build("llama"), inputs("llama")
    match = r"model\.layers\.0\.self_attn: the keyword 'head_temperature' \(float\) arrived"
    with pytest.raises(BackendError, match=match) as caught, open_door(model):
        model(**batch, head_temperature=2.0)  # **kwargs of the model reach the attention function
    assert "\n" not in str(caught.value)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["cu_seq_lens_q", "max_length_k", "seq_idx", "indices", "block_indices"])
def test_what_would_change_attention_is_refused_unless_it_says_nothing(name: str) -> None:
    assert read(**{name: None}).visible is not None
    with pytest.raises(BackendError, match=f"the keyword '{name}'"):
        read(**{name: torch.tensor([0, 5])})


@pytest.mark.parametrize("name", ["num_items_in_batch", "position_ids", "deterministic", "use_cache"])
def test_what_changes_nothing_is_let_through(name: str) -> None:
    assert read(**{name: 3}).scale == 0.5


def test_scaling_is_read_and_has_textbook_default() -> None:
    assert read(scaling=0.125).scale == 0.125
    assert read(scaling=1.0).scale == 1.0
    assert read().scale == 4**-0.5


def test_dropout_softcap_and_bias_arrive() -> None:
    bias = torch.randn(1, 6, 5, 5, generator=TORCH, dtype=torch.float64)
    call = read(dropout=0.25, softcap=30.0, position_bias=bias, scaling=None)
    assert (call.dropout, call.softcap) == (0.25, 30.0)
    assert call.bias is bias


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_nothing_is_switched_off_by_a_number(value: float) -> None:
    """A model whose configuration says so would divide by it, or multiply by it."""
    for name, words in (("softcap", "softcap must"), ("scaling", "scale must"), ("sliding_window", "window must")):
        with pytest.raises(BackendError, match=f"^Module: {words}"):
            read(**{name: value})


@pytest.mark.parametrize("name", ["s_aux", "sinks"])
def test_sinks_are_one_a_head(name: str) -> None:
    sinks = torch.randn(6, dtype=torch.float64)
    assert read(**{name: sinks}).sinks is sinks
    with pytest.raises(BackendError, match=rf"{name} of shape \(2, 6, 5, 1\); expected one logit a query head, \(6,\)"):
        read(**{name: torch.randn(2, 6, 5, 1)})  # a sink a query, as Inkling has them


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_softcap_and_sinks_are_exact_where_sdpa_raises_or_drops_them(name: str) -> None:
    """Cases O54 and conformance 3: transformers' own SDPA function raises on the one and ignores the other."""
    model, batch = build(name), inputs(name)
    exact, calls = rounding.model(model, batch), []
    with open_door(model, observers=[lambda call, out: calls.append(call)]):
        after = logits(model, batch)
    assert exact.holds(after)
    assert all((call.softcap if name == "gemma2" else call.sinks) is not None for call in calls)
    gone: Function = lambda call: softmax.attention(  # noqa: E731
        call.q, call.k, call.v, **{**call.options, "softcap": None, "sinks": None}
    )  # type: ignore[return-value, assignment]
    with open_door(model, implementation=gone):
        assert exact.told(logits(model, batch))


# What stands in the place of the mask.


def seen(call: Call) -> torch.Tensor:
    return call.weights() > 0


def test_no_mask_is_causal_where_the_module_is() -> None:
    lower = torch.ones(5, 5).tril().bool().expand(2, 6, 5, 5)
    assert torch.equal(seen(read()), lower)
    assert torch.equal(seen(read(of=module())), lower)  # transformers' default
    assert seen(read(of=module(is_causal=False))).all()
    assert seen(read(is_causal=False)).all()  # the keyword wins
    assert torch.equal(seen(read(is_causal=True, of=module(is_causal=False))), lower)


def test_no_mask_for_one_query_shows_every_key() -> None:
    assert seen(read(queries=1, keys=7)).all()


def test_no_mask_for_a_block_over_more_keys_is_ambiguous() -> None:
    """SDPA's flag would show the first query one key, a cache would show it three (case O12)."""
    with pytest.raises(BackendError, match="3 queries over 5 keys came without a mask"):
        read(queries=3, keys=5)
    assert seen(read(queries=3, keys=5, of=module(is_causal=False))).all()  # cross-attention


def test_a_window_without_its_mask_is_applied() -> None:
    expected = torch.ones(5, 5).tril().triu(-1).bool().expand(2, 6, 5, 5)
    assert torch.equal(seen(read(sliding_window=2)), expected)
    assert torch.equal(
        seen(read(queries=1, sliding_window=2))[0, 0, 0], torch.tensor([False, False, False, True, True])
    )
    assert torch.equal(seen(read(sliding_window=5)), seen(read()))
    with pytest.raises(BackendError, match="two-sided window of 2 over 5 keys"):
        read(sliding_window=2, of=module(is_causal=False))


def test_a_mask_of_floats_forbids_by_the_least_number_and_adds_the_rest() -> None:
    least = torch.finfo(torch.float64).min
    mask = torch.zeros(2, 1, 5, 5, dtype=torch.float64)
    mask[:, :, :, 3] = least
    mask[:, :, :, 4] = -torch.inf
    mask[:, :, :, 1] = -0.5
    mask[:, :, 2] = least  # a row that sees nothing
    call = read(mask)
    logit = call.q @ call.k.repeat_interleave(3, 1).mT / 2 + mask
    expected = torch.softmax(logit, -1)
    expected[:, :, 2] = 0  # zeros and not one fifth each (cases O01, O02)
    assert torch.allclose(call.weights(), expected, atol=1e-12)
    assert attend(call)[:, :, 2].abs().max() == 0


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (torch.ones(2, 5, dtype=torch.bool), r"the mask is \(2, 5\); expected \(batch, heads or 1, queries, keys\)"),
        (torch.ones(2, 1, 5, 5, dtype=torch.long), "the mask holds torch.int64; expected booleans"),
        ({"full": None}, "the mask is dict"),
    ],
)
def test_other_masks_are_refused(mask: Any, found: str) -> None:
    with pytest.raises(BackendError, match=found):
        read(mask)


def test_one_column_is_never_all_keys() -> None:
    """Neither of a mask of booleans nor of floats, whatever would compute the call."""
    for mask in (torch.ones(2, 1, 1, 1, dtype=torch.bool), torch.zeros(2, 1, 1, 1, dtype=torch.float32)):
        with pytest.raises(
            BackendError, match=r"visible \(2, 1, 1, 1\) does not fit .* \(2, 6, 1, 7\); valid: these sizes"
        ):
            read_call(module(is_causal=True), *(x.float() for x in tensors(1, 7)), mask, {})


@pytest.mark.parametrize("kind", ["ours", "dynamic", "static"])
def test_padding_that_leaves_out_what_is_cached_is_refused(kind: str) -> None:
    """Two rows, the first padded by 2, and then a mask of the newest column or the two newest ones."""
    model, ids = build("llama"), inputs("llama", tokens=6)["input_ids"]
    padding = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    with open_door(model), torch.no_grad():
        caches: dict[str, Any] = {
            "ours": lambda: manyheads.cache(model), "dynamic": lambda: DynamicCache(config=model.config),
            "static": lambda: StaticCache(config=model.config, max_cache_len=8),
        }  # fmt: skip
        for few in (1, 2):
            cache = caches[kind]()
            model(ids[:, :5], attention_mask=padding[:, :5], cache=cache, use_cache=True)
            with pytest.raises(
                BackendError, match=rf"attention_mask \(2, {few}\) speaks of {few} tokens, .* there are 6"
            ):
                model(ids[:, 5:], attention_mask=padding[:, -few:], cache=cache, use_cache=True)


def made(**arguments: Any) -> torch.Tensor | None:
    return make_mask(
        **{"batch_size": 1, "q_length": 5, "kv_length": 5, "mask_function": causal_mask_function, **arguments}
    )


def test_the_mask_is_left_out_in_two_cases_only() -> None:
    assert made() is None
    assert made(q_length=1, q_offset=4) is None
    assert made(q_length=2, q_offset=3) is not None  # a block after a cache
    assert made(q_length=3) is not None  # the first fill of a static cache, where SDPA's function returns None
    assert made(q_length=1, q_offset=torch.tensor(4)) is not None
    assert made(q_length=1, q_offset=2) is not None  # one query, and keys after it that are not there yet
    assert made(attention_mask=torch.tensor([[0, 1, 1, 1, 1]]).bool()) is not None
    assert made(allow_is_causal_skip=False) is not None


def test_the_mask_of_a_static_cache_shows_what_is_filled() -> None:
    mask = made(q_length=3, kv_length=6)
    assert mask is not None
    assert torch.equal(mask[0, 0], torch.ones(3, 6).tril().bool())


def test_a_bidirectional_mask_says_so_and_nobody_has_to_look() -> None:
    mask = made(q_length=3, mask_function=None, allow_is_causal_skip=False, allow_is_bidirectional_skip=True)
    assert mask is not None
    assert mask.shape == (1, 1, 3, 5)
    assert mask.all()
    assert read(mask.expand(2, 1, 3, 5), queries=3).weights().gt(0).all()  # a copy without the mark reads the same
    assert read(mask, queries=3).mask is None


def test_an_argument_of_a_future_transformers_at_the_mask_function() -> None:
    assert made(dtype=torch.float32, config=SimpleNamespace(), local_size=None, dilation=None) is None
    with pytest.raises(BackendError, match="the argument 'dilation' arrived at the mask function"):
        made(dilation=2)


# Implementations, gates, observers.


def test_looking_changes_nothing() -> None:
    model, batch, calls = build("gemma2"), inputs("gemma2"), []
    with open_door(model):
        before = logits(model, batch)
    with open_door(model, observers=[lambda call, out: calls.append((call, out))]):
        after = logits(model, batch)
    assert torch.equal(before, after)
    assert [call.layer for call, _ in calls] == [0, 1, 2, 3, 4]
    call, out = calls[1]
    assert call.module is model.model.layers[1].self_attn
    assert call.path == "model.layers.1.self_attn"
    assert (call.q.shape, call.k.shape, out.shape) == ((2, 6, 11, 10), (2, 2, 11, 10), (2, 6, 11, 10))
    assert (call.scale, call.softcap) == (pytest.approx(144**-0.5), model.config.attn_logit_softcapping)
    mixed = call.weights() @ call.v.repeat_interleave(3, dim=1)
    exact = rounding.attention(call.q, call.k, call.v, **call.options)
    assert exact.holds(mixed)
    assert exact.holds(out)


def test_weights_are_what_eager_returns() -> None:
    for name in ("qwen3", "gpt_oss", "bert"):
        model, batch = build(name), inputs(name)
        calls: list[torch.Tensor] = []
        theirs = rounding.model(model, batch, output_attentions=True, pick=lambda out: torch.stack(out.attentions))
        with torch.no_grad(), open_door(model, observers=[lambda call, out, seen=calls: seen.append(call.weights())]):
            model(**batch)
        assert theirs.holds(torch.stack(calls))


def test_a_gate_acts_on_heads_before_they_are_mixed() -> None:
    """Silencing one head through the door is silencing its columns of the output projection."""
    model, batch = build("qwen3"), inputs("qwen3")
    keep = torch.ones(6)
    keep[4] = 0
    with open_door(model, gates=[lambda call, out: out * keep.view(1, -1, 1, 1) if call.layer == 1 else out]):
        gated = logits(model, batch)
    model.model.layers[1].self_attn.o_proj.weight.data[:, 40:50] = 0
    assert rounding.model(model, batch).holds(gated)


def test_gates_of_nested_doors_multiply_and_observers_see_their_own_doors_result() -> None:
    model, batch = build("llama"), inputs("llama")
    found: dict[str, list[torch.Tensor]] = {"outer": [], "inner": []}
    with (
        open_door(model, gates=[lambda c, out: out * 3], observers=[lambda c, out: found["outer"].append(out)]),
        open_door(model, gates=[lambda c, out: out * 2], observers=[lambda c, out: found["inner"].append(out)]),
    ):
        logits(model, batch)
    for outer, inner in zip(found["outer"], found["inner"], strict=True):
        assert torch.allclose(outer, inner * 3)


class OneQuery:
    """A form that knows one query only, as a decoding kernel does."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.done: list[int] = []

    def supports(self, call: Call) -> Yes | No:
        self.asked.append(call.q.shape[2])
        return Yes() if call.q.shape[2] == 1 else No("more than one query")

    def __call__(self, call: Call) -> torch.Tensor:
        self.done.append(call.q.shape[2])
        return attend(call, "plain")


def test_a_form_that_does_not_support_a_call_leaves_it_to_the_one_outside() -> None:
    model, outer, form = build("llama"), [], OneQuery()

    def mine(call: Call) -> torch.Tensor:
        outer.append(call.q.shape[2])
        return attend(call, "tiled")

    ids = inputs("llama")["input_ids"]
    expected = model.generate(ids, max_new_tokens=4, do_sample=False)
    with open_door(model, implementation=mine), open_door(model, implementation=form):
        assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), expected)
    assert outer == [11] * 3
    assert form.done == [1] * 9
    assert form.asked == [11] * 3 + [1] * 9


def test_an_unknown_implementation_or_a_wrong_shape_is_refused() -> None:
    model, batch = build("llama"), inputs("llama")
    with (
        pytest.raises(BackendError, match="'flash' is not one of auto, kernel, plain, tiled, sdpa"),
        open_door(model, implementation="flash"),
    ):
        pass
    match = r"model\.layers\.0\.self_attn: an implementation or gate returned \(2, 6, 11\); expected"
    with pytest.raises(BackendError, match=match), open_door(model, gates=[lambda call, out: out[..., 0]]):
        model(**batch)
    with pytest.raises(BackendError, match="returned NoneType"), open_door(model, implementation=lambda call: None):
        model(**batch)
    assert model.config._attn_implementation == "eager"
