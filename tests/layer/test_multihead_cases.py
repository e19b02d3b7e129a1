"""Public reports of what multi-head attention modules got wrong, by their numbers, through the drop-in."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from torch import nn  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from manyheads.errors import SpecError  # noqa: E402
from manyheads.layer.multihead import MultiheadAttention, multi_head_attention_forward  # noqa: E402
from support import (  # noqa: E402
    multihead_reference,
    rounding,
)

either_way = pytest.mark.parametrize("need_weights", [True, False])


def layer(*arguments, seed=0, **options):
    """A layer whose biases are not zero, so that a context of zeros can be told from an output of zeros."""
    torch.manual_seed(seed)
    made = MultiheadAttention(*arguments, **{"batch_first": True, "dtype": torch.float64, **options})
    for weight in made.parameters():
        nn.init.normal_(weight)
    return made


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def above(size):
    """torch's square causal mask: True = may not attend."""
    return torch.ones(size, size, dtype=torch.bool).triu(1)


def test_case_o01_a_head_that_sees_nothing_adds_nothing() -> None:
    ours = layer(3, 3)
    x, mask = random(1, 5, 3), torch.zeros(3, 5, 5, dtype=torch.bool)
    mask[2] = True
    out, weights = ours(x, x, x, attn_mask=mask, average_attn_weights=False)
    alone, _ = ours(x, x, x, attn_mask=mask, need_weights=False)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out, alone)
    assert not weights[:, 2].any()
    torch.testing.assert_close(weights[:, :2].sum(-1), torch.ones(1, 2, 5, dtype=torch.float64))
    with torch.no_grad():  # the dead head contributes 0: its columns of the output projection do not matter
        ours.out_proj.weight[:, 2] = 1e3
    torch.testing.assert_close(ours(x, x, x, attn_mask=mask)[0], out)


@either_way
def test_case_o02_causal_and_left_padding_leave_finite_gradients(need_weights) -> None:
    ours = layer(4, 2)
    x = random(2, 3, 4).requires_grad_()
    padding = torch.tensor([[True, False, False], [False, False, False]])
    out, _ = ours(x, x, x, padding, need_weights, above(3))
    torch.testing.assert_close(out[0, 0], ours.out_proj.bias)
    found = torch.autograd.grad(out[:, 1:].square().sum(), [x, *ours.parameters()])
    assert all(torch.isfinite(gradient).all() for gradient in found)
    # without weights torch is right, too
    theirs = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    expected, _ = theirs(x, x, x, padding, False, above(3))
    expected = torch.autograd.grad(expected[:, 1:].square().sum(), [x, *theirs.parameters()])
    torch.testing.assert_close(found, expected)


@either_way
def test_gradients_where_nothing_is_seen_are_zero_and_right(need_weights) -> None:
    ours = layer(4, 2, add_bias_kv=False)
    q, k, v = random(2, 3, 4).requires_grad_(), random(2, 2, 4).requires_grad_(), random(2, 2, 4).requires_grad_()
    padding = torch.tensor([[True, True], [False, False]])
    floats = torch.zeros(2, 2, dtype=torch.float64).masked_fill(padding, -torch.inf)
    for mask in (padding, floats):
        out, _ = ours(q, k, v, mask, need_weights)
        for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
            assert not gradient[0].any()
            assert torch.isfinite(gradient).all()
        assert torch.autograd.gradcheck(
            lambda *x, m=mask: tuple(y for y in ours(*x, m, need_weights) if y is not None), (q, k, v)
        )


@either_way
def test_case_o03_padding_hides_a_column_and_never_a_row(need_weights) -> None:
    ours = layer(4, 2)
    x = random(1, 5, 4)
    padding = torch.tensor([[False, False, False, False, True]])
    mask = above(5).expand(2, 5, 5)
    out, weights = ours(x, x, x, padding, need_weights, mask, False)
    if weights is not None:
        assert not weights[..., 4].any()
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 5, dtype=torch.float64))
    shorter, _ = ours(x, x[:, :4], x[:, :4], None, need_weights, mask[:, :, :4])
    torch.testing.assert_close(out, shorter)


@either_way
def test_case_o04_lengths_of_zero_touch_nobody_else(need_weights) -> None:
    ours = layer(4, 2)
    x, lengths = random(3, 4, 4), [4, 0, 2]
    padding = torch.arange(4) >= torch.tensor(lengths)[:, None]
    out, _ = ours(x, x, x, padding, need_weights)
    for number, length in enumerate(lengths):
        alone = x[number : number + 1, :length]
        expected = rounding.evaluated(
            lambda number=number, alone=alone: ours(x[number : number + 1], alone, alone, None, need_weights)[0],
            dtype=torch.float64,
        )
        assert expected.holds(out[number : number + 1])
    torch.testing.assert_close(out[1], ours.out_proj.bias.expand(4, 4))


@either_way
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True")
def test_inside_torchs_encoder_no_row_is_nan_in_evaluation_either(need_weights) -> None:
    """torch's fast path gives NaN for a sequence that is all padding; with ours inside it is not taken."""
    theirs = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dtype=torch.float64).eval()
    theirs.self_attn = layer(4, 2).eval()
    x, padding = random(2, 3, 4), torch.tensor([[False, False, True], [True, True, True]])
    with torch.no_grad():
        fast, stack = theirs(x, src_key_padding_mask=padding), nn.TransformerEncoder(theirs, 2)
        assert torch.isfinite(stack(x, src_key_padding_mask=padding)).all()
        assert torch.isfinite(theirs(x, src_mask=torch.ones(3, 3, dtype=torch.bool))).all()
    torch.testing.assert_close(fast, theirs(x, src_key_padding_mask=padding))
    assert torch.isfinite(fast).all()


@either_way
def test_case_o05_true_is_blocked_here_and_seen_in_sdpa(need_weights) -> None:
    seen = torch.tensor([[True, False], [True, True]])
    x, unit = random(2, 3), torch.eye(3, dtype=torch.float64)
    out, _ = multi_head_attention_forward(
        x, x, x, 3, 1, torch.cat([unit] * 3), None, None, None, False, 0.0, unit, None, need_weights=need_weights,
        attn_mask=~seen,
    )  # fmt: skip
    torch.testing.assert_close(out, scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=seen)[0])


def test_case_o06_polarity_is_said_where_one_looks() -> None:
    assert "True = may NOT attend" in MultiheadAttention.__doc__
    assert "True = may not attend" in MultiheadAttention.forward.__doc__
    ours, x = layer(4, 2), random(1, 3, 4)
    with pytest.raises(SpecError, match=r"attn_mask must be boolean \(True = may not attend\)"):
        ours(x, x, x, attn_mask=above(3).int())


@either_way
def test_case_o08_a_float_padding_mask_is_honoured(need_weights) -> None:
    ours, x = layer(4, 2), random(2, 3, 4)
    flags = torch.tensor([[False, False, True], [False, True, False]])
    floats = torch.zeros(2, 3, dtype=torch.float64).masked_fill(flags, -torch.inf)
    for mask in (None, above(3), torch.zeros(3, 3, dtype=torch.float64).masked_fill(above(3), -torch.inf)):
        found, expected = (ours(x, x, x, padding, need_weights, mask)[0] for padding in (floats, flags))
        torch.testing.assert_close(found, expected)
        assert not torch.allclose(found, ours(x, x, x, None, need_weights, mask)[0])


@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask"])
def test_case_o09_a_float_mask_of_flags_is_warned_about(name) -> None:
    ours, x = layer(4, 2), random(3, 3, 4)
    flags = above(3).double()
    with pytest.warns(UserWarning, match=f"{name} is floating and holds only 0 and 1: it is added to the scores"):
        out, _ = ours(x, x, x, **{name: flags})
    # and is added, as the interface says
    torch.testing.assert_close(out, ours(x, x, x, **{name: flags.clamp(min=1e-300)})[0])
    for harmless in (flags * 0, flags * 2, flags - 1, flags / 2):
        ours(x, x, x, **{name: harmless})  # warnings are errors in this test run


@either_way
def test_case_o10_a_mask_a_sequence_is_refused_and_both_shapes_named(need_weights) -> None:
    ours, x = layer(4, 2), random(2, 3, 4)
    mask = torch.zeros(2, 3, 3, dtype=torch.bool)
    mask[0, :, 2] = True
    message = (
        r"\(queries, keys\) \(3, 3\) or \(batch \* heads, queries, keys\) \(4, 3, 3\); found \(2, 3, 3\); "
        r"for one a sequence, pass attn_mask.repeat_interleave\(2, 0\)"
    )
    with pytest.raises(SpecError, match=message):
        ours(x, x, x, need_weights=need_weights, attn_mask=mask)
    out, _ = ours(x, x, x, need_weights=need_weights, attn_mask=mask.repeat_interleave(2, 0))
    for number in range(2):
        alone = x[number : number + 1]
        torch.testing.assert_close(out[number], ours(alone, alone, alone, attn_mask=mask[number])[0][0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_case_o11_columns_that_all_sequences_pad_stay_in_the_output() -> None:
    inside = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dtype=torch.float64)
    inside.self_attn = layer(4, 2)
    stack, x = nn.TransformerEncoder(inside, 2), random(2, 6, 4)
    padding = torch.arange(6).expand(2, 6) >= 4
    shapes = [stack.train(training)(x, src_key_padding_mask=padding).shape for training in (True, False)]
    with torch.no_grad():
        shapes.append(stack(x, src_key_padding_mask=padding).shape)
    assert shapes == [(2, 6, 4)] * 3
    ours = layer(4, 2)
    assert ours.eval()(x, x, x, padding)[0].shape == (2, 6, 4)
    assert ours(x, x, x, padding)[1].shape == (2, 6, 6)


def test_case_o47_two_least_numbers_of_float16_hide_and_poison_nothing() -> None:
    ours, x = layer(4, 2, dtype=torch.float16), random(1, 3, 4).half()
    least = torch.finfo(torch.float16).min
    mask = torch.zeros(3, 3, dtype=torch.float16).masked_fill(above(3), least)
    padding = torch.tensor([[0.0, 0.0, least]], dtype=torch.float16)
    for need_weights in (True, False):
        out, weights = ours(x, x, x, padding, need_weights, mask)
        assert torch.isfinite(out).all()
        if weights is not None:
            assert not weights[..., 2].any()
        expected, _ = ours(x, x, x, padding < 0, need_weights, above(3))
        torch.testing.assert_close(out, expected)
    # where all keys have both, they are as far from one another as without: exact sums, not minus infinity
    both = (torch.full((1, 3), least, dtype=torch.float16), torch.full((3, 3), least, dtype=torch.float16))
    expected, weights = multihead_reference.attend(ours, x, x, x, key_padding_mask=both[0], attn_mask=both[1])
    for need_weights in (True, False):
        out, found = ours(x, x, x, both[0], need_weights, both[1], False)
        numpy.testing.assert_allclose(out.detach().numpy(), expected, atol=0.05)
        if found is not None:
            numpy.testing.assert_allclose(found.detach().numpy(), weights, atol=0.01)


def test_case_o12_which_alignment_is_for_a_mask_to_say() -> None:
    """With as many queries as keys is_causal needs no mask; elsewhere it is refused: first keys or last, nobody knows."""
    ours, x = layer(4, 2), random(2, 5, 4)
    for need_weights in (True, False):
        expected, _ = ours(x, x, x, None, need_weights, above(5))
        torch.testing.assert_close(ours(x, x, x, None, need_weights, is_causal=True)[0], expected)
        with pytest.raises(SpecError, match=r"2 queries and 5 keys: .*\.triu\(4\) if they are the last .*\.triu\(1\)"):
            ours(x[:, 3:], x, x, None, need_weights, is_causal=True)
        last = torch.ones(2, 5, dtype=torch.bool).triu(4)
        step, weights = ours(x[:, 3:], x, x, None, need_weights, last, is_causal=True)
        torch.testing.assert_close(step, expected[:, 3:])
        if weights is not None:
            assert (weights[0] > 0).tolist() == [[True] * 4 + [False], [True] * 5]
        first, _ = ours(x[:, 3:], x, x, None, need_weights, torch.ones(2, 5, dtype=torch.bool).triu(1), is_causal=True)
        alone, _ = ours(x[:, 3:4], x[:, :1], x[:, :1])
        torch.testing.assert_close(first[:, :1], alone)


@either_way
def test_a_hint_that_is_wrong_changes_nothing(need_weights) -> None:
    """torch drops the mask for its own causal one, in one of its paths only."""
    ours, x = layer(4, 2), random(2, 3, 4)
    mask = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 0, 0]]).bool()
    expected, _ = ours(x, x, x, None, need_weights, mask)
    torch.testing.assert_close(ours(x, x, x, None, need_weights, mask, is_causal=True)[0], expected)


@either_way
@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}, {}])
def test_keys_that_were_added_are_seen_under_a_causal_mask(options, need_weights) -> None:
    ours, x = layer(4, 2, **options), random(2, 3, 4)
    expected, weights = ours(x, x, x, attn_mask=above(3))
    assert (weights[:, :, 3:] > 0).all()
    torch.testing.assert_close(ours(x, x, x, None, need_weights, is_causal=True)[0], expected)
    torch.testing.assert_close(ours(x, x, x, None, need_weights, above(3), is_causal=True)[0], expected)


CALLS = list(itertools.product((True, False), (0.0, 0.5), (2, 3), ("mask", "float mask", "flag", "mask and flag")))


@pytest.mark.parametrize(("need_weights", "dropout", "rank", "how"), CALLS)
def test_case_o13_the_future_never_leaks(need_weights, dropout, rank, how) -> None:
    ours = layer(4, 2, dropout=dropout)
    x = random(3, 4) if rank == 2 else random(2, 3, 4)
    settings = {
        "mask": {"attn_mask": above(3)},
        "float mask": {"attn_mask": torch.zeros(3, 3, dtype=torch.float64).masked_fill(above(3), -torch.inf)},
        "flag": {"is_causal": True},
        "mask and flag": {"attn_mask": above(3), "is_causal": True},
    }[how]

    def run(x):
        torch.manual_seed(5)
        return ours(x, x, x, need_weights=need_weights, average_attn_weights=False, **settings)

    before, weights = run(x)
    if weights is not None:
        assert not weights.masked_select(above(3)).any()
    for token in (1, 2):
        moved = x.clone()
        moved[..., token, :] += 10
        after, _ = run(moved)
        assert torch.equal(after[..., :token, :], before[..., :token, :])
        assert not torch.equal(after[..., token:, :], before[..., token:, :])


def test_cases_o15_and_o16_per_head_weights_and_their_mean() -> None:
    ours = layer(10, 2, batch_first=False)
    x = random(4, 3, 10)
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            _, each = ours.train(mode)(x, x, x, average_attn_weights=False)
            _, mean = ours(x, x, x)
        assert each.shape == (3, 2, 4, 4)
        torch.testing.assert_close(each.mean(1), mean)
        assert not torch.allclose(each[:, 0], each[:, 1])


def test_case_o17_weights_are_those_before_dropout() -> None:
    ours, x = layer(4, 2, dropout=0.5), random(3, 6, 4)
    _, trained = ours.train()(x, x, x, average_attn_weights=False)
    _, evaluated = ours.eval()(x, x, x, average_attn_weights=False)
    assert torch.equal(trained, evaluated)
    torch.testing.assert_close(trained.sum(-1), torch.ones(3, 2, 6, dtype=torch.float64))


@either_way
def test_case_o45_how_far_memory_is_padded_does_not_matter(need_weights) -> None:
    ours = layer(6, 2, kdim=4, vdim=5)
    query, keys, values = random(2, 3, 6), random(2, 3, 4), random(2, 3, 5)
    expected, _ = ours(query, keys, values, None, need_weights)
    for length in (5, 9):
        padding = torch.arange(length).expand(2, length) >= 3
        longer = [torch.cat([x, random(2, length - 3, x.shape[2])], 1) for x in (keys, values)]
        torch.testing.assert_close(ours(query, *longer, padding, need_weights)[0], expected)


@either_way
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 2, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0), (2, 0, 0)])
def test_case_o60_no_sequences_no_queries_no_keys(batch, queries, keys, options, need_weights) -> None:
    ours = layer(4, 2, **options)
    given = [random(batch, tokens, 4).requires_grad_() for tokens in (queries, keys, keys)]
    mask = torch.zeros(queries, keys, dtype=torch.bool)
    for padding in (None, torch.zeros(batch, keys, dtype=torch.bool), torch.zeros(batch, keys, dtype=torch.float64)):
        out, weights = ours(*given, padding, need_weights, None if padding is None else mask)
        assert out.shape == (batch, queries, 4)
        assert weights is None or weights.shape == (batch, queries, keys + len(options))
        for gradient, x in zip(torch.autograd.grad(out.sum(), given, allow_unused=True), given, strict=True):
            assert gradient is None or (gradient.shape == x.shape and torch.isfinite(gradient).all())
        if not keys and "add_bias_kv" not in options:
            torch.testing.assert_close(out, ours.out_proj.bias.expand(batch, queries, 4))


STRIDES = {
    "transposed tokens": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "width outermost": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "every second column": lambda x: torch.stack([x, x + 1], -1).flatten(-2)[..., ::2],
    "every second token": lambda x: torch.stack([x, x + 1], 2).flatten(1, 2)[:, ::2],
    "a slice of something wider": lambda x: torch.cat([x + 1, x, x - 1], -1)[..., x.shape[-1] : 2 * x.shape[-1]],
    "reversed twice": lambda x: x.flip(1).contiguous().flip(1).as_strided(x.shape, x.stride()),
}


@either_way
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("pattern", STRIDES)
def test_cases_o62_and_o63_strides_do_not_matter(pattern, which, need_weights) -> None:
    ours = layer(6, 2)
    given = [random(2, 5, 6) for _ in range(3)]
    strided = [STRIDES[pattern](x) if number in which else x for number, x in enumerate(given)]
    assert all(torch.equal(one, other) for one, other in zip(given, strided, strict=True))
    torch.testing.assert_close(
        ours(*strided, need_weights=need_weights)[0], ours(*given, need_weights=need_weights)[0], rtol=0, atol=1e-13
    )
