"""Functions of many conventions: each is found by its names and by trying, and passes; and what cannot be is refused."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from manyheads.check.adapter import Adapter
from manyheads.check.catalogue import by_name
from manyheads.check.subject import CallError
from manyheads.errors import SpecError
from support.check_support import failing, guessed, outcomes, passing


def core(q, k, v, blocked=None):
    """The truth of these tests: (b, h, t, d), rows that see nothing give zeros."""
    scores = (q.float() if q.dtype != torch.float64 else q) @ (k.float() if k.dtype != torch.float64 else k).mT
    scores = scores / q.shape[-1] ** 0.5
    if blocked is not None:
        scores = scores.masked_fill(blocked, -torch.inf)
    if not scores.shape[-1]:
        return (scores @ v.to(scores.dtype)).to(q.dtype)
    top = scores.detach().amax(-1, keepdim=True).clamp(min=-1e30)
    powers = (scores - top).exp()
    total = powers.sum(-1, keepdim=True)
    return (powers / total.masked_fill(total == 0, 1) @ v.to(scores.dtype)).to(q.dtype)


def check(function, **expected) -> Adapter:
    """The adapter has these fields, and every case that is tested passes."""
    subject = guessed(function)
    assert {name: getattr(subject.adapter, name) for name in expected} == expected
    assert failing(subject) == []
    return subject.adapter


# layouts


def bhtd(q, k, v):
    return core(q, k, v)


def bthd(q, k, v):
    return core(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def transformers_style(query, key, value):
    """(batch, heads, tokens, dim) in, (batch, tokens, heads, dim) out."""
    return core(query, key, value).transpose(1, 2), None


def packed(q, k, v, num_heads):
    q, k, v = (x.unflatten(2, (num_heads, x.shape[2] // num_heads)).transpose(1, 2) for x in (q, k, v))
    return core(q, k, v).transpose(1, 2).flatten(2)


def packed_grouped(q, k, v, n_heads, n_kv_heads):
    q = q.unflatten(2, (n_heads, q.shape[2] // n_heads)).transpose(1, 2)
    k, v = (x.unflatten(2, (n_kv_heads, x.shape[2] // n_kv_heads)).transpose(1, 2) for x in (k, v))
    k, v = (x.repeat_interleave(n_heads // n_kv_heads, 1) for x in (k, v))
    return core(q, k, v).transpose(1, 2).flatten(2)


def one_head(q, k, v):
    assert q.dim() == 3
    return core(q[:, None], k[:, None], v[:, None])[:, 0]


def one_sequence(q, k, v):
    assert q.dim() == 2
    return core(q[None, None], k[None, None], v[None, None])[0, 0]


def heads_in_packed_out(q, k, v):
    return core(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("function", "layout", "out_layout"),
    [
        (bhtd, "bhtd", "bhtd"), (bthd, "bthd", "bthd"), (transformers_style, "bhtd", "bthd"), (packed, "btd", "btd"),
        (packed_grouped, "btd", "btd"), (one_head, "btd", "btd"), (one_sequence, "td", "td"),
        (heads_in_packed_out, "bhtd", "btd"),
    ],
)  # fmt: skip
def test_layouts(function, layout, out_layout) -> None:
    check(function, layout=layout, out_layout=out_layout, framework="torch")


def test_what_a_layout_cannot_hold_is_not_tested() -> None:
    lacks = check(one_head).lacks
    assert lacks["grouped"] == lacks["heads"] == "works on one head"
    assert check(one_sequence).lacks["batch"] == "works on one sequence"
    assert "grouped" in check(packed).lacks  # a number of heads, but none of key/value heads
    assert "grouped" not in check(packed_grouped).lacks
    assert outcomes(guessed(one_head), "batch")["batch"].status == "pass"


def test_a_layout_without_batch_can_be_told() -> None:
    def htd(q, k, v):
        assert q.dim() == 3
        return core(q[None], k[None], v[None])[0]

    def thd(q, k, v):
        return core(*(x.transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)

    for function, layout in ((htd, "htd"), (thd, "thd")):
        subject = guessed(function, layout=layout)
        assert (subject.adapter.layout, subject.adapter.out_layout) == (layout, layout)
        assert failing(subject) == []


# masks


def visible(q, k, v, mask=None):
    return core(q, k, v, None if mask is None else ~mask)


def blocked(q, k, v, attn_mask=None):
    return core(q, k, v, attn_mask)


def additive(q, k, v, attention_mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if attention_mask is not None:
        assert attention_mask.is_floating_point()
        scores = scores + attention_mask
    return core_of_scores(scores, v)


def core_of_scores(scores, v):
    if not scores.shape[-1]:
        return scores @ v
    top = scores.detach().amax(-1, keepdim=True).clamp(min=-1e30)
    powers = (scores - top).exp()
    return powers / powers.sum(-1, keepdim=True).clamp(min=1e-30) @ v


def three_axes(q, k, v, mask=None):
    if mask is not None:
        assert mask.dim() == 3
        mask = ~mask[:, None]
    return core(q, k, v, mask)


def two_axes(q, k, v, mask=None):
    if mask is not None:
        assert mask.dim() == 2
        mask = ~mask
    return core(q, k, v, mask)


def zeros_and_ones(q, k, v, mask=None):
    return core(q, k, v, None if mask is None else mask == 0)


def mask_required(q, k, v, mask):
    return core(q, k, v, None if mask is None else ~mask)


def padding_kept(q, k, v, key_padding_mask=None):
    return core(q, k, v, None if key_padding_mask is None else ~key_padding_mask[:, None, None])


def padding_ignored(q, k, v, key_padding_mask=None):
    return core(q, k, v, None if key_padding_mask is None else key_padding_mask[:, None, None])


@pytest.mark.parametrize(
    ("function", "mask", "axes", "bias"),
    [
        (visible, "visible", "bhts", ""), (blocked, "blocked", "bhts", ""), (zeros_and_ones, "visible", "bhts", ""),
        (three_axes, "visible", "bts", ""), (two_axes, "visible", "ts", ""), (mask_required, "visible", "bhts", ""),
    ],
)  # fmt: skip
def test_masks(function, mask, axes, bias) -> None:
    check(function, mask=mask, mask_axes=axes, bias=bias)


def test_an_additive_mask_is_a_bias_too() -> None:
    subject = guessed(additive, no=("float16", "bfloat16"))
    assert (subject.adapter.mask, subject.adapter.bias) == ("additive", "mask")
    assert failing(subject) == []
    assert {"mask", "bias", "bias-minus-infinity", "empty-row"} <= set(passing(subject))


def test_masks_of_fewer_axes_are_not_tested_for_what_they_cannot_say() -> None:
    assert check(three_axes).lacks["mask-heads"] == "its mask is (batch, queries, keys)"
    assert "the same for all sequences" in check(two_axes).lacks["mask-samples"]


@pytest.mark.parametrize(("function", "polarity"), [(padding_kept, "visible"), (padding_ignored, "blocked")])
def test_padding(function, polarity) -> None:
    check(function, padding=polarity)
    assert "padding" in passing(guessed(function))


def test_a_name_that_promises_is_held_against_the_function() -> None:
    """The same code: under the name `mask` a convention, under the name `visible` a fault; and told, a fault."""

    def free(q, k, v, mask=None):
        return core(q, k, v, mask)

    def promised(q, k, v, visible=None):
        return core(q, k, v, visible)

    assert failing(guessed(free)) == []
    assert "mask" in failing(guessed(promised))
    assert "mask" in failing(guessed(free, mask="visible"))
    assert failing(guessed(free, mask="blocked")) == []


# causal, window, and others


def test_always_causal_is_found() -> None:
    def attention(q, k, v):
        late = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(k.shape[-2] - q.shape[-2] + 1)
        return core(q, k, v, late)

    check(attention, causal="always")
    assert {"causal", "causal-cache", "future", "values"} <= set(passing(guessed(attention)))


def window_rule(q, k, causal, back):
    at = torch.arange(k.shape[-2] - q.shape[-2], k.shape[-2])[:, None] - torch.arange(k.shape[-2])
    late = (at < 0) if causal or back is not None else torch.zeros_like(at, dtype=torch.bool)
    return late if back is None else late | (at > back)


def test_windows_in_keys_and_as_a_pair() -> None:
    def keys(q, k, v, causal=False, sliding_window=None):
        return core(q, k, v, window_rule(q, k, causal, None if sliding_window is None else sliding_window - 1))

    def pair(q, k, v, causal=False, window_size=(-1, -1)):
        return core(q, k, v, window_rule(q, k, causal, None if window_size[0] < 0 else window_size[0]))

    check(keys, window="keys", causal="flag")
    check(pair, window="pair", causal="flag")


def test_weights_asked_for_or_always_returned() -> None:
    def weights_of(q, k):
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)

    def asked(q, k, v, need_weights=False):
        out = core(q, k, v)
        return (out, weights_of(q, k)) if need_weights else out

    def always(q, k, v):
        return core(q, k, v), weights_of(q, k)

    def averaged(q, k, v, need_weights=False):
        return core(q, k, v), weights_of(q, k).mean(1)

    assert "weights" in passing(guessed(asked))
    assert guessed(asked).adapter.weights == "flag"
    assert "weights" in passing(guessed(always))
    assert guessed(always).adapter.weights == "always"
    found = outcomes(guessed(averaged), "weights")["weights"]
    assert (found.status, found.finding.cause) == ("fail", "weights averaged")


def test_numpy_is_known_by_annotations_modules_and_results() -> None:
    def annotated(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
        powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e30))
        return powers / powers.sum(-1, keepdims=True) @ v

    subject = guessed(annotated, no=("float16",))
    assert subject.adapter.framework == "numpy"
    assert failing(subject) == []
    assert subject.adapter.lacks["gradients"] == "numpy arrays have no gradients"


def test_names_by_position_or_as_told() -> None:
    def positions(a, b, c):
        return core(a, b, c)

    def only(a, b, c, /):
        return core(a, b, c)

    def odd(values, where_from, to):
        return core(where_from, to, values)

    assert dict(guessed(positions).adapter.names) == {"q": "a", "k": "b", "v": "c"}
    assert guessed(only).adapter.positional == ("a", "b", "c")
    assert failing(guessed(only)) == []
    subject = guessed(odd, names={"q": "where_from", "k": "to", "v": "values"})
    assert failing(subject) == []


def test_a_builtin_without_a_signature_is_called_by_position() -> None:
    subject = guessed(torch.nn.functional.scaled_dot_product_attention, names={"mask": "attn_mask", "scale": "scale"})
    assert subject.adapter.positional == ("q", "k", "v")
    assert (subject.adapter.mask, subject.adapter.bias) == ("visible", "mask")
    assert failing(subject) == []


def test_dropout_training_offset_and_fixed_values_are_given() -> None:
    given = {}

    def attention(module, q, k, v, dropout_p=0.5, training=True, offset=0):
        given.update(module=module, dropout_p=dropout_p, training=training, offset=offset)
        return core(q, k, v)

    subject = guessed(attention, fixed={"module": "a module"})
    assert "fewer-queries" in passing(subject)
    case = by_name()["fewer-queries"]
    subject.call(case.build(case.full, torch.Generator().manual_seed(0)))  # 3 queries, 6 keys
    assert given == {"module": "a module", "dropout_p": 0.0, "training": False, "offset": 3}


def test_features_told_not_to_test_or_refused_are_said() -> None:
    def attention(q, k, v, causal=False):
        if q.shape[1] != k.shape[1]:
            raise ValueError("no grouped heads here")
        return core(q, k, v, window_rule(q, k, causal, None))

    subject = guessed(attention, no=("causal",))
    found = outcomes(subject)
    assert found["causal"].reason == "told not to"
    assert found["group-order"].reason == "it refuses: ValueError: no grouped heads here"
    assert found["window"].reason == "takes no window"
    assert {found[name].status for name in ("causal", "group-order", "window")} == {"not tested"}


def test_a_kernel_that_refuses_other_strides_says_so() -> None:
    def attention(q, k, v):
        if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
            raise ValueError("contiguous tensors, please")
        return core(q, k, v)

    subject = guessed(attention)
    assert subject.adapter.lacks["strides"] == "it refuses: ValueError: contiguous tensors, please"
    assert failing(subject) == []


def test_a_module_of_torch_is_called_as_its_forward() -> None:
    class Attention(torch.nn.Module):
        def forward(self, query, key, value, visible=None):
            return core(query, key, value, None if visible is None else ~visible)

    module = Attention()
    module.__name__ = "attention"
    subject = guessed(module)
    assert (subject.adapter.names["q"], subject.adapter.mask) == ("query", "visible")
    assert failing(subject) == []


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"layout": "hbtd"}, "'hbtd' is not one of bhtd"),
        ({"mask": "upside"}, "'upside' is not one of visible"),
        ({"no": ("windows",)}, "there is no feature 'windows'"),
        ({"names": {"queries": "q"}}, "there is no role 'queries'"),
        ({"names": {"q": "query"}}, "there is no parameter 'query'"),
    ],
)
def test_wishes_that_cannot_be(wishes, message) -> None:
    with pytest.raises(SpecError, match=message):
        guessed(bhtd, **wishes)


def test_parameters_that_are_not_understood() -> None:
    def strange(q, k, v, temperature):
        return core(q, k, v)

    def two(q, k):
        return q

    with pytest.raises(SpecError, match="'temperature' has no default"):
        guessed(strange)
    with pytest.raises(SpecError, match="no parameter for v was found"):
        guessed(two)
    guessed(strange, names={"scale": "temperature"})


def test_a_function_that_cannot_be_called_says_where() -> None:
    def broken(q, k, v):
        raise RuntimeError("not written yet")

    def text(q, k, v):
        return "attention"

    def flat(q, k, v):
        return core(q, k, v).sum(-1)

    with pytest.raises(CallError, match="RuntimeError: not written yet") as error:
        guessed(broken)
    assert error.value.line is not None
    with pytest.raises(CallError, match="returned a str, expected an array"):
        guessed(text)
    with pytest.raises(CallError, match="gave an output of shape"):
        guessed(flat)


def test_a_function_that_is_nan_everywhere_is_not_taken_for_causal() -> None:
    def nothing(q, k, v):
        return core(q, k, v) * torch.nan

    subject = guessed(nothing)
    assert subject.adapter.causal == ""
    assert "values" in failing(subject)


def test_an_adapter_survives_json() -> None:
    adapter = guessed(packed_grouped).adapter
    assert Adapter.from_data(adapter.to_data()) == adapter
