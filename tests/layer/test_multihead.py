"""A drop-in for torch.nn.MultiheadAttention: what stands in for it must be made, called, saved and loaded as it is."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from manyheads.errors import SpecError  # noqa: E402
from manyheads.layer.multihead import MultiheadAttention, multi_head_attention_forward  # noqa: E402
from support import rounding  # noqa: E402

CONFIGURATIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "extra keys": {"add_bias_kv": True, "add_zero_attn": True},
    "other widths": {"kdim": 4, "vdim": 5},
    "other keys": {"kdim": 4, "add_bias_kv": True, "bias": False},
    "other values": {"vdim": 10, "add_zero_attn": True},
}
each_configuration = pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)


def pair(**options):
    """torch's module and ours with the same weights, all of them moved off their initial zeros."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(6, 2, **options)
    for weight in theirs.parameters():
        nn.init.normal_(weight)
    ours = MultiheadAttention(6, 2, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(module, *, queries=3, keys=4, batch=2):
    sizes = [(queries, batch, module.embed_dim), (keys, batch, module.kdim), (keys, batch, module.vdim)]
    dtype = module.out_proj.weight.dtype
    return [torch.randn(b, t, w, dtype=dtype) if module.batch_first else torch.randn(t, b, w, dtype=dtype)
            for t, b, w in sizes]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (MultiheadAttention.__init__, nn.MultiheadAttention.__init__),
        (MultiheadAttention.forward, nn.MultiheadAttention.forward),
        (multi_head_attention_forward, functional.multi_head_attention_forward),
    ],
)
def test_arguments_have_torchs_names_order_and_defaults(ours, theirs) -> None:
    def arguments(function):
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    assert arguments(ours) == arguments(theirs)


@each_configuration
def test_the_same_seed_gives_the_same_weights(options) -> None:
    made = []
    for kind in (nn.MultiheadAttention, MultiheadAttention):
        torch.manual_seed(7)
        made.append(kind(6, 2, **options).state_dict())
    theirs, ours = made
    assert list(ours) == list(theirs)
    for name, weight in theirs.items():
        assert torch.equal(ours[name], weight), name


@each_configuration
def test_state_dicts_are_exchanged_both_ways_bit_for_bit(options) -> None:
    theirs, ours = nn.MultiheadAttention(6, 2, **options), MultiheadAttention(6, 2, **options)
    before = copy.deepcopy(ours.state_dict())
    theirs.load_state_dict(ours.state_dict(), strict=True)
    fresh = MultiheadAttention(6, 2, **options)
    fresh.load_state_dict(theirs.state_dict(), strict=True)
    for name, weight in before.items():
        assert torch.equal(fresh.state_dict()[name], weight), name


def test_case_o44_widths_and_names() -> None:
    layer = MultiheadAttention(6, 2, kdim=4, vdim=5)
    shapes = {name: tuple(weight.shape) for name, weight in layer.state_dict().items()}
    assert shapes == {
        "q_proj_weight": (6, 6),
        "k_proj_weight": (6, 4),
        "v_proj_weight": (6, 5),
        "in_proj_bias": (18,),
        "out_proj.weight": (6, 6),
        "out_proj.bias": (6,),
    }
    assert layer(*inputs(layer))[0].shape == (3, 2, 6)


@each_configuration
def test_private_attributes_are_torchs(options) -> None:
    theirs, ours = pair(**options)
    for name in ("embed_dim", "kdim", "vdim", "num_heads", "head_dim", "dropout", "batch_first", "add_zero_attn"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours._qkv_same_embed_dim is theirs._qkv_same_embed_dim
    for name in (
        "in_proj_weight",
        "q_proj_weight",
        "k_proj_weight",
        "v_proj_weight",
        "in_proj_bias",
        "bias_k",
        "bias_v",
    ):
        assert (getattr(ours, name) is None) == (getattr(theirs, name) is None), name
    assert type(ours.out_proj) is type(theirs.out_proj)
    assert isinstance(ours, nn.MultiheadAttention)


def test_merge_masks_answers_as_torchs_does() -> None:
    theirs, ours = pair(batch_first=True)
    x, square = torch.randn(2, 3, 6), torch.zeros(3, 3)
    padding = torch.zeros(2, 3)
    for masks in ((None, None), (square, None), (None, padding), (square, padding)):
        (merged, kind), (expected, expected_kind) = ours.merge_masks(*masks, x), theirs.merge_masks(*masks, x)
        assert kind == expected_kind
        assert (merged is None and expected is None) or torch.equal(merged, expected)


@each_configuration
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_torchs_where_torch_is_right(options, batch_first, dtype) -> None:
    theirs, ours = pair(**options, batch_first=batch_first, dtype=dtype)
    blocked = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]]).bool()
    for settings in (
        {},
        {"average_attn_weights": False},
        {"need_weights": False},
        {"attn_mask": blocked},
        {"attn_mask": blocked, "need_weights": False},
        {"attn_mask": torch.randn(4, 3, 4, dtype=dtype), "average_attn_weights": False},
        {"key_padding_mask": torch.tensor([[0, 0, 1, 0], [0, 0, 1, 1]]).bool(), "attn_mask": blocked},
        {"key_padding_mask": torch.randn(2, 4, dtype=dtype), "need_weights": False},
    ):
        given = inputs(theirs)
        wide, told = copy.deepcopy(theirs).double(), {name: widened(x) for name, x in settings.items()}
        expected = rounding.each(lambda: gradients(wide, [x.double() for x in given], told), dtype=dtype)  # noqa: B023
        for exact, found in zip(expected, gradients(ours, given, settings), strict=True):
            assert exact is None if found is None else exact.holds(found), settings


def widened(x):
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def gradients(module, given, settings):
    """Outputs, weights where asked for, and the gradients of all inputs and weights."""
    given = [x.clone().requires_grad_() for x in given]
    out, weights = module(*given, **settings)
    torch.manual_seed(3)
    loss = (out * torch.randn(out.shape).to(out.dtype)).sum()
    if weights is not None:
        loss = loss + (weights * torch.randn(weights.shape).to(out.dtype)).sum()
    wrt = [*given, *module.parameters()]
    return [out, *([] if weights is None else [weights]), *torch.autograd.grad(loss, wrt, allow_unused=True)]


@each_configuration
def test_unbatched_input_is_a_batch_of_one(options) -> None:
    _, ours = pair(**options, batch_first=True)
    q, k, v = inputs(ours, batch=1)
    mask, padding = torch.rand(2, 3, 4) < 0.4, torch.tensor([False, True, False, False])
    for need_weights in (True, False):
        out, weights = ours(q[0], k[0], v[0], padding, need_weights, mask, False)
        expected, expected_weights = ours(q, k, v, padding[None], need_weights, mask, False)
        torch.testing.assert_close(out, expected[0])
        assert (weights is None) == (not need_weights)
        if weights is not None:
            torch.testing.assert_close(weights, expected_weights[0])
            assert weights.shape[:2] == (2, 3)
    assert ours(q[0], k[0], v[0])[1].dim() == 2


@each_configuration
def test_pickles_and_copies(options) -> None:
    _, ours = pair(**options)
    given = inputs(ours)
    expected = ours(*given)[0]
    saved = io.BytesIO()
    torch.save(ours, saved)
    saved.seek(0)
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), torch.load(saved, weights_only=False)):
        assert type(twin) is MultiheadAttention
        assert torch.equal(twin(*given)[0], expected)


def test_a_state_from_before_qkv_same_embed_dim_existed() -> None:
    _, ours = pair()
    state = {name: value for name, value in ours.__dict__.items() if name != "_qkv_same_embed_dim"}
    old = MultiheadAttention.__new__(MultiheadAttention)
    old.__setstate__(state)
    given = inputs(ours)
    assert old._qkv_same_embed_dim is True
    assert torch.equal(old(*given)[0], ours(*given)[0])


def test_the_three_products_of_the_projection_agree() -> None:
    """One product where all inputs are one tensor, two where keys are values, three otherwise: one function."""
    _, ours = pair()
    x = torch.randn(3, 2, 6)
    expected = ours(x, x, x)[0]
    torch.testing.assert_close(ours(x.clone(), x, x)[0], expected)
    torch.testing.assert_close(ours(x, x.clone(), x.clone())[0], expected)


def test_static_keys_and_values() -> None:
    _, ours = pair()
    static = torch.randn(4, 5, 3)
    x = torch.randn(3, 2, 6)
    arguments = (
        x,
        x,
        x,
        6,
        2,
        ours.in_proj_weight,
        ours.in_proj_bias,
        None,
        None,
        True,
        0.0,
        ours.out_proj.weight,
        None,
    )
    found = multi_head_attention_forward(*arguments, static_k=static, static_v=static + 1)
    expected = functional.multi_head_attention_forward(*arguments, static_k=static, static_v=static + 1)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(SpecError, match=r"static_v must be \(batch \* heads, keys, head_dim\), \(4, any, 3\)"):
        multi_head_attention_forward(*arguments, static_k=static, static_v=static[:2])


def test_autocast_computes_in_its_dtype() -> None:
    theirs, ours = pair(batch_first=True, add_bias_kv=True)
    q, k, v = inputs(ours)
    wide, given = copy.deepcopy(theirs).double(), [x.double() for x in (q, k, v)]
    exact = rounding.evaluated(lambda: wide(*given)[0], dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for need_weights in (True, False):
            for module in (ours, theirs):
                found = module(q, k, v, need_weights=need_weights)[0]
                assert found.dtype == torch.bfloat16
                assert exact.holds(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 3), "embed_dim 10 does not divide into 3 heads; embed_dim 9 or 12 would"),
        ((512, 6), "embed_dim 512 does not divide into 6 heads; embed_dim 510 or 516 would"),
        ((2, 6), "embed_dim 2 does not divide into 6 heads; embed_dim 6 or 12 would"),
        ((0, 1), "embed_dim and num_heads must be 1 or more, found 0 and 1"),
        ((4, -2), "embed_dim and num_heads must be 1 or more, found 4 and -2"),
        ((8, 2.0), "num_heads must be an integer, found 2.0"),
        ((8.0, 2), "embed_dim must be an integer, found 8.0"),
        ((8, True), "num_heads must be an integer, found True"),
        ((8, 2, 0.0, True, False, False, 4.0), "kdim must be an integer, found 4.0"),
        ((4, 2, 1.5), r"dropout must lie in \[0, 1\], found 1.5"),
    ],
)
def test_cases_o42_and_o43_a_layer_that_cannot_be(arguments, message) -> None:
    with pytest.raises(SpecError, match=f"^{message}$"):
        MultiheadAttention(*arguments)


def test_numpys_integers_are_integers() -> None:
    layer = MultiheadAttention(np.int64(8), np.int32(2))
    assert (type(layer.num_heads), layer.num_heads, layer.head_dim) == (int, 2, 4)
    layer(*[torch.randn(3, 1, 8)] * 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[..., :4], k, v), "query must be 6 wide, as its projection is; found 4"),
        (lambda q, k, v: (q, k[..., :3], v), "key must be 6 wide, as its projection is; found 3"),
        (lambda q, k, v: (q, k, v[..., :2]), "value must be 6 wide, as its projection is; found 2"),
        (lambda q, k, v: (q[0], k, v), r"all be 2-D \(unbatched\) or all 3-D \(batched\); found query \(2, 6\)"),
        (lambda q, k, v: (q[None], k[None], v[None]), r"found query \(1, 3, 2, 6\)"),
        (lambda q, k, v: (q, k, v[:-1]), r"key and value must agree .* key \(4, 2, 6\), value \(3, 2, 6\)"),
        (lambda q, k, v: (q[:, :1], k, v), r"same batch size, found 1 and 2 on axis 1 \(batch_first=False\)"),
        (lambda q, k, v: (q.double(), k, v), "query must have the weights' dtype torch.float32, found torch.float64"),
        (lambda q, k, v: (q, k.to("meta"), v), "key is on meta and the weights are on cpu"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_their_numbers(change, message) -> None:
    layer = MultiheadAttention(6, 2)
    with pytest.raises(SpecError, match=message):
        layer(*change(*inputs(layer)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attn_mask": torch.zeros(3, 4).int()}, "attn_mask must be boolean .* found torch.int32"),
        ({"key_padding_mask": torch.zeros(2, 4).long()}, "key_padding_mask must be boolean .* found torch.int64"),
        ({"key_padding_mask": torch.zeros(4, 2).bool()}, r"\(batch, keys\) \(2, 4\), or \(keys,\) .* found \(4, 2\)"),
        ({"key_padding_mask": torch.zeros(4).bool()}, r"key_padding_mask must be \(batch, keys\) \(2, 4\)"),
        ({"attn_mask": torch.zeros(4, 3).bool()}, r"\(queries, keys\) \(3, 4\) or .* found \(4, 3\)$"),
        ({"attn_mask": torch.zeros(2, 2, 3, 4).bool()}, r"\(4, 3, 4\); found \(2, 2, 3, 4\)$"),
        ({"is_causal": True}, "as many keys as queries, found 3 queries and 4 keys"),
    ],
)
def test_masks_that_do_not_fit_are_refused_with_their_numbers(settings, message) -> None:
    layer = MultiheadAttention(6, 2)
    with pytest.raises(SpecError, match=message):
        layer(*inputs(layer), **settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dim_to_check": 4}, "embed_dim_to_check 4 wide, a multiple of 2 heads; found 6"),
        ({"num_heads": 2.0}, "num_heads must be an integer of 1 or more, found 2.0"),
        ({"num_heads": 0}, "num_heads must lie in"),
        ({"dropout_p": float("nan")}, "dropout must lie in"),
        ({"num_heads": 4}, "embed_dim_to_check 6 wide, a multiple of 4 heads; found 6"),
        ({"in_proj_weight": None}, "use_separate_proj_weight=False needs in_proj_weight; found None"),
        ({"use_separate_proj_weight": True}, "needs q_proj_weight, k_proj_weight and v_proj_weight; found None"),
        ({"bias_k": torch.zeros(6)}, "bias_k and bias_v come together"),
    ],
)
def test_the_function_refuses_weights_that_do_not_fit(options, message) -> None:
    layer, x = MultiheadAttention(6, 2), torch.randn(3, 6)
    usual = {
        "embed_dim_to_check": 6, "num_heads": 2, "in_proj_weight": layer.in_proj_weight,
        "in_proj_bias": layer.in_proj_bias, "bias_k": None, "bias_v": None, "add_zero_attn": False, "dropout_p": 0.0,
        "out_proj_weight": layer.out_proj.weight, "out_proj_bias": layer.out_proj.bias,
    }  # fmt: skip
    with pytest.raises(SpecError, match=message):
        multi_head_attention_forward(x, x, x, **{**usual, **options})
