"""Every member of the family against the definition, written out query by query and state by state."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from hypothesis import assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from manyheads.errors import SpecError  # noqa: E402
from manyheads.layer import Attention  # noqa: E402
from manyheads.ops import masks  # noqa: E402
from manyheads.spec import (  # noqa: E402
    AttentionSpec,
    Band,
    Bidirectional,
    Borrowed,
    Causal,
    Cross,
    DynamicScaling,
    Heads,
    LongRopeScaling,
    NoPositions,
    NoScaling,
    RelativeBuckets,
    Rope,
    State,
    Window,
)
from support import rounding  # noqa: E402
from support.attention_layers import SPECS, cached, kinds, layer, numbers, table_for, tokens  # noqa: E402
from support.strategies import attention_specs  # noqa: E402

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}


def memory_for(spec: AttentionSpec, batch: int = 2, count: int = 7) -> tuple[torch.Tensor, ...]:
    return (tokens(batch, count, spec.source.d_memory, seed=5),) if isinstance(spec.source, Cross) else ()


@pytest.mark.parametrize("name", SPECS)
def test_each_scheme_is_its_definition(name: str) -> None:
    made, x = layer(name), tokens(2, 9)
    memory, table = memory_for(made.spec), table_for(made.spec)
    torch.testing.assert_close(made(x, *memory, **table), numbers(made, x, *memory, **table), **TOLERANCE)


def plain(spec: AttentionSpec) -> AttentionSpec:
    """`spec` with numbers that the definition can be held to: scales, caps and eps as models have them, no rope scaling."""
    changes: dict = {"scale": 0.4, "softcap": None if spec.softcap is None else 1.5}
    if isinstance(spec.positions, Rope):
        changes["positions"] = replace(spec.positions, base=300.0, scaling=NoScaling())
    if isinstance(spec.positions, RelativeBuckets):
        changes["positions"] = replace(spec.positions, num_buckets=8, max_distance=20)
    if spec.qk_norm is not None:
        changes["qk_norm"] = replace(spec.qk_norm, norm=replace(spec.qk_norm.norm, eps=1e-3))
    if not isinstance(spec.kv, Heads) and spec.kv.norm is not None:
        changes["kv"] = replace(spec.kv, norm=replace(spec.kv.norm, eps=1e-3))
    return replace(spec, **changes)


@settings(max_examples=120)
@given(attention_specs(sources=("self", "cross")), st.data())
def test_any_spec_is_its_definition_whole_and_in_pieces(spec: AttentionSpec, data: st.DataObject) -> None:
    spec = plain(spec)
    kv = spec.kv
    if isinstance(kv, State):
        assume(not (kv.normalised and "delta" in kv.rule))
        assume(isinstance(spec.mask, Causal) or (kv.rule == "sum" and not kv.conv_width))
        # a sum of features of both signs may be 0, and what is divided by it anything
        assume(not kv.normalised or kv.feature_map in ("elu+1", "relu", "learned"))
    made, x = layer(spec), tokens(2, 6, spec.d_model)
    memory, table = memory_for(spec), table_for(spec)
    with torch.no_grad():
        whole = numbers(made, x, *memory, **table)
        torch.testing.assert_close(made(x, *memory, **table), whole, rtol=1e-9, atol=1e-9)
        if memory or isinstance(spec.mask, Bidirectional | Band):
            return
        kind = data.draw(st.sampled_from(kinds(spec)))
        cuts = sorted(data.draw(st.sets(st.integers(1, 5))))
        sizes = [b - a for a, b in pairwise((0, *cuts, 6))]
        cache = cached(kind, spec, 2, capacity=8)
        pieces = [made(part, cache=cache, **table) for part in x.split(sizes, 1)]
        torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if not isinstance(spec.kv, State)])
@pytest.mark.parametrize("backend", ["plain", "tiled", "sdpa"])
def test_every_backend_agrees_in_values_and_gradients(name: str, backend: str) -> None:
    made = layer(name)
    memory, table = memory_for(made.spec), table_for(made.spec)
    found = []
    for which in ("auto", backend):
        x = tokens(2, 9).requires_grad_()
        made.zero_grad()
        made(x, *memory, backend=which, **table).square().sum().backward()
        found.append([x.grad, *(parameter.grad.clone() for parameter in made.parameters())])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["recurrent", "chunked", "quadratic"])
@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if isinstance(spec.kv, State)])
def test_every_form_of_linear_attention_agrees_in_values_and_gradients(name: str, form: str) -> None:
    made, found = layer(name), []
    for which in ("auto", form):
        x = tokens(2, 70).requires_grad_()
        made.zero_grad()
        y = made(x, form=which)
        y.square().mean().backward()
        found.append([y, x.grad, *(parameter.grad.clone() for parameter in made.parameters())])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
@pytest.mark.parametrize("name", ["mla", "mla_query_latent", "mla_no_rope"])
def test_both_forms_of_latent_attention_agree_in_values_weights_and_gradients(name: str, form: str) -> None:
    made, found = layer(name), []
    for which in ("auto", form):
        x = tokens(2, 9).requires_grad_()
        made.zero_grad()
        y, weights = made(x, form=which, need_weights="heads")
        torch.testing.assert_close(y, made(x, form=which, backend="tiled"), **TOLERANCE)
        y.square().sum().backward()
        found.append([y, weights, x.grad, *(parameter.grad.clone() for parameter in made.parameters())])
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["mha_rope", "norm_full_after", "mla_query_latent", "linear_gated_delta", "sinks"])
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    made, x = layer(name), tokens(1, 4).requires_grad_()
    names = [name for name, _ in made.named_parameters()]

    def call(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(made, dict(zip(names, values, strict=True)), (x,))

    values = [parameter.detach().clone().requires_grad_() for parameter in made.parameters()]
    assert torch.autograd.gradcheck(call, (x, *values), fast_mode=True)


@pytest.mark.parametrize("seen", ["booleans", "predicate", "padding"])
def test_a_callers_mask_and_the_specs_are_both_obeyed(seen: str) -> None:
    """What is hidden from a query changes nothing for it, whichever way it was said (cases O13, O45)."""
    made, x = layer("window"), tokens(2, 9)
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[:, 5] = False
    visible = {"booleans": keep[:, None].expand(2, 9, 9), "predicate": masks.dense(keep[:, None, None]),
               "padding": masks.padding(keep)}[seen]  # fmt: skip
    other = x.clone()
    other[:, 5] += 1
    y, changed = made(x, visible=visible), made(other, visible=visible)
    rest = [i for i in range(9) if i != 5]
    torch.testing.assert_close(y[:, rest], changed[:, rest], **TOLERANCE)
    assert not torch.allclose(made(x)[:, 6], y[:, 6])
    assert (made(x)[:, :5] - y[:, :5]).abs().max() < 1e-12


def test_a_mask_of_each_sequence_of_its_own() -> None:
    """Case O10: (b, t, s) is a mask a sequence, never a mask a head."""
    made, x = layer("mha"), tokens(2, 5)
    visible = torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.7
    y = made(x, visible=visible)
    for row in range(2):
        torch.testing.assert_close(y[row : row + 1], made(x[row : row + 1], visible=visible[row]), **TOLERANCE)
    heads = visible[:, None] & (torch.arange(3) > 0)[None, :, None, None]
    _, weights = made(x, visible=heads, need_weights="heads")
    assert weights[:, 0].abs().max() == 0
    assert weights[:, 1].abs().max() > 0


def test_three_axes_that_could_be_sequences_or_heads_are_refused() -> None:
    """As many sequences as heads: layer and operators would read one mask two ways; each is written with four axes."""
    made, x = layer("mha"), tokens(3, 5)
    visible = torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.7
    words = r"visible \(3, 5, 5\) can be read two ways, as there are 3 sequences and 3 heads: write visible\[:, None\]"
    for mask in (visible, masks.dense(visible), masks.causal() & masks.dense(visible)):
        with pytest.raises(SpecError, match=words):
            made(x, visible=mask)
    _, by_sequence = made(x, visible=visible[:, None], need_weights="heads")
    _, by_head = made(x, visible=visible[None], need_weights="heads")
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    assert torch.equal(by_sequence > 0, (visible & causal)[:, None].expand(3, 3, 5, 5))
    assert torch.equal(by_head > 0, (visible & causal)[None].expand(3, 3, 5, 5))
    made(x, visible=visible[:1])  # one for all


def test_a_bias_of_zero_and_infinity_is_a_mask() -> None:
    made, x = layer("gqa_interleaved"), tokens(2, 6)
    seen = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(3)) < 0.6
    bias = torch.zeros(2, 1, 6, 6, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(made(x, bias=bias), made(x, visible=seen), **TOLERANCE)


def test_a_bias_of_the_callers_adds_to_alibi() -> None:
    made, x = layer("mqa_alibi"), tokens(2, 6)
    bias = torch.randn(2, 6, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    plain = layer(AttentionSpec.gqa(20, 6, 1, head_dim=8, v_head_dim=5))
    slopes = torch.tensor([0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125], dtype=torch.float64)
    distance = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    both = bias - slopes[:, None, None] * distance
    torch.testing.assert_close(made(x, bias=bias), plain(x, bias=both), **TOLERANCE)


def test_what_is_given_as_positions_is_what_counts() -> None:
    """Rotary angles know differences only: shifted by a constant, nothing changes; by another, it does (case O28)."""
    made, x = layer("mha_rope"), tokens(2, 6)
    here = made(x)
    torch.testing.assert_close(made(x, positions=torch.arange(6) + 4000), here, rtol=1e-9, atol=1e-9)
    apart = torch.stack((torch.arange(6), torch.arange(6) * 3))
    torch.testing.assert_close(made(x, positions=apart)[:1], here[:1], **TOLERANCE)
    assert not torch.allclose(made(x, positions=apart)[1:], here[1:])


def test_a_dynamic_base_grows_with_the_sequence() -> None:
    """Beyond the 8 tokens of its original context: base · (factor · 13/8 - factor + 1)^(8/6), here 500 · 2.25^(4/3)."""
    dynamic = layer(AttentionSpec.mha(20, 3, head_dim=8, positions=Rope(8, 500.0, scaling=DynamicScaling(2.0, 8))))
    grown = layer(AttentionSpec.mha(20, 3, head_dim=8, positions=Rope(8, 500.0 * 2.25 ** (4 / 3))))
    static = layer(AttentionSpec.mha(20, 3, head_dim=8, positions=Rope(8, 500.0)))
    x = tokens(2, 13)
    torch.testing.assert_close(dynamic(x), grown(x), **TOLERANCE)
    torch.testing.assert_close(dynamic(x, positions=torch.arange(13)), grown(x), **TOLERANCE)
    torch.testing.assert_close(dynamic(x[:, :8]), static(x[:, :8]), **TOLERANCE)


def test_longrope_chooses_by_length() -> None:
    """Short divisors up to the original 8 tokens, long ones beyond, also where a cache has seen the tokens before."""
    both = layer(
        AttentionSpec.mha(
            20, 3, head_dim=4, positions=Rope(4, 50.0, scaling=LongRopeScaling(8, (1.0, 1.5), (2.0, 3.0)))
        )
    )
    short, long = (
        layer(AttentionSpec.mha(20, 3, head_dim=4, positions=Rope(4, 50.0, scaling=LongRopeScaling(8, row, row))))
        for row in ((1.0, 1.5), (2.0, 3.0))
    )
    x = tokens(2, 9)
    torch.testing.assert_close(both(x), long(x), **TOLERANCE)
    torch.testing.assert_close(both(x[:, :8]), short(x[:, :8]), **TOLERANCE)
    with torch.no_grad():
        for kind in ("growing", "static"):
            cache = cached(kind, both.spec, 2)
            whole = short(x[:, :8])
            torch.testing.assert_close(
                torch.cat([both(x[:, :5], cache=cache), both(x[:, 5:8], cache=cache)], 1), whole, **TOLERANCE
            )


def test_a_chunk_begins_where_positions_say() -> None:
    """Left padding of 3 shifts every chunk: with positions, each sequence is what it is alone."""
    made, x = layer("chunk"), tokens(1, 6)
    padded = torch.cat((tokens(1, 3, seed=9), x), 1)
    keep = torch.arange(9)[None] >= 3
    positions = (torch.arange(9) - 3).clamp(min=0)[None]
    y = made(padded, visible=masks.padding(keep), positions=positions)
    torch.testing.assert_close(y[:, 3:], made(x), **TOLERANCE)


@pytest.mark.parametrize("scope", ["heads", "latent"])
def test_a_layer_borrows_the_keys_and_values_of_another(scope: str) -> None:
    lender = layer("gqa_partial_rope" if scope == "heads" else "mla")
    x, z = tokens(2, 7), tokens(2, 7, seed=4)
    kept = lender.keep(x)
    torch.testing.assert_close(lender(x, kv=kept), lender(x), **TOLERANCE)
    if scope == "latent":
        return
    spec = AttentionSpec.gqa(20, 6, 2, head_dim=8, v_head_dim=5, positions=Rope(4), source=Borrowed(0), bias="q")
    borrower = layer(spec, seed=3)
    whole = AttentionSpec.gqa(20, 6, 2, head_dim=8, v_head_dim=5, positions=Rope(4), bias="qk")
    own = layer(whole, seed=3)
    own.load(
        {
            "q": borrower.q,
            "q.bias": borrower.q_bias,
            "k": lender.k,
            "k.bias": lender.k_bias,
            "v": lender.v,
            "o": borrower.o,
        }
    )
    assert {name for name, _ in borrower.named_parameters()} == {"q", "q_bias", "o"}
    mixed = own(z, kv=kept)
    torch.testing.assert_close(borrower(z, kv=kept), mixed, **TOLERANCE)
    torch.testing.assert_close(borrower(z, kv=(kept.keys, kept.values)), mixed, **TOLERANCE)
    assert not torch.allclose(mixed, own(z))


def test_head_sizes_need_not_multiply_to_the_width() -> None:
    """Case O41: 1,023 wide, 8 heads of 25; and case O44: a memory of another width, values of a third."""
    made = layer(AttentionSpec.mha(1023, 8, head_dim=25), dtype=torch.float32)
    assert tuple(made.o.shape) == (1023, 8, 25)
    assert made(tokens(1, 3, 1023, dtype=torch.float32)).shape == (1, 3, 1023)
    kv = Heads(3, 2, 5)
    spec = AttentionSpec(d_model=6, num_heads=3, kv=kv, positions=NoPositions(), mask=Bidirectional(), source=Cross(4),
                         scale=2**-0.5)  # fmt: skip
    made = layer(spec)
    assert tuple(made.k.shape) == (3, 2, 4)
    assert tuple(made.v.shape) == (3, 5, 4)
    assert made(tokens(2, 3, 6), tokens(2, 8, 4)).shape == (2, 3, 6)


def test_a_key_value_head_serves_consecutive_query_heads() -> None:
    """Case O21: with values that name their head, query heads 0 to 5 of 6 read 0, 0, 0, 1, 1, 1."""
    spec = AttentionSpec.gqa(4, 6, 2, head_dim=2, v_head_dim=1)
    made = layer(spec)
    made.v.data.zero_()
    made.v.data[:, 0, 0] = torch.tensor([1.0, 2.0])
    made.o.data.zero_()
    read = []
    for head in range(6):
        made.o.data.zero_()
        made.o.data[0, head, 0] = 1.0
        x = tokens(1, 3, 4)
        x[..., 0] = 1.0
        read.append(round(made(x)[0, -1, 0].item()))
    assert read == [1, 1, 1, 2, 2, 2]


def test_a_window_keeps_as_many_keys_as_it_says() -> None:
    """Case O55: T = 6, W = 3 shows 1, 2, 3, 3, 3, 3 keys."""
    made = layer(AttentionSpec.gqa(20, 6, 2, head_dim=8, mask=Window(3)))
    _, weights = made(tokens(1, 6), need_weights="mean")
    assert (weights[0] > 0).sum(-1).tolist() == [1, 2, 3, 3, 3, 3]


def test_angles_stay_wide_in_a_narrow_model() -> None:
    """Case O30: in bfloat16 the first position that cannot be held is 257; angles made there would be off by 0.5 and more."""
    spec = AttentionSpec.mha(16, 2, positions=Rope(8))
    made = layer(spec, dtype=torch.float32).to(torch.bfloat16)
    x = tokens(1, 2, 16, dtype=torch.bfloat16)
    turned = made._rotation(2, 0, torch.tensor([[257, 600]]))
    assert turned is not None
    exact = torch.tensor([257.0, 600.0], dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(4).double() / 4)
    torch.testing.assert_close(turned.cos.double(), exact.cos(), rtol=0, atol=1e-6)
    torch.testing.assert_close(turned.sin.double(), exact.sin(), rtol=0, atol=1e-6)
    y = made(x, positions=torch.tensor([257, 600]))
    assert y.dtype == torch.bfloat16
    wide = layer(spec, dtype=torch.float64)
    wide.load({name: value.double() for name, value in made.state_dict().items()})
    positions = torch.tensor([257, 600])
    assert rounding.evaluated(lambda: wide(x.double(), positions=positions), dtype=torch.bfloat16).holds(y)


def test_the_default_dtype_and_autocast_are_torchs() -> None:
    made = Attention(AttentionSpec.mha(16, 2, positions=Rope(8)))
    assert made.q.dtype == torch.float32
    x = tokens(1, 5, 16, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = made(x)
    wide = copy.deepcopy(made).double()
    assert rounding.evaluated(lambda: wide(x.double()), dtype=torch.bfloat16).holds(y)


def test_linear_layers_that_mean_nothing_are_refused() -> None:
    with pytest.raises(SpecError, match="rule delta takes back what it wrote"):
        Attention(AttentionSpec(
            d_model=4, num_heads=1, kv=State(1, 1, 1, 4, 4, 4, rule="delta", beta="scalar"), positions=NoPositions(),
            mask=Causal(), scale=1.0,
        ))  # fmt: skip
    with pytest.raises(SpecError, match="rule gated and short convolutions go one way"):
        Attention(AttentionSpec(
            d_model=4, num_heads=1, kv=State(1, 1, 1, 4, 4, 4, rule="gated", decay="per_head"), positions=NoPositions(),
            mask=Bidirectional(), scale=1.0,
        ))  # fmt: skip
