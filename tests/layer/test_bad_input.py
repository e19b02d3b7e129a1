"""What does not fit is refused at the door, with the names and the numbers; nothing is changed by it."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from manyheads.errors import SpecError  # noqa: E402
from manyheads.layer import Attention  # noqa: E402
from manyheads.ops import masks  # noqa: E402
from manyheads.spec import Alibi, AttentionSpec, Bidirectional, Borrowed, Cross, Rope  # noqa: E402
from support.attention_layers import SPECS, cached, layer, tokens  # noqa: E402

F = torch.float64
YES = torch.ones(5, 5, dtype=torch.bool)


def bad(name: str, message: str, *inputs: object, **options: object) -> object:
    """One call that must be refused, as a parameter of the test."""
    return pytest.param(name, inputs or (tokens(2, 5),), options, message, id=f"{name}-{message[:40]}")


def full_memory() -> object:
    """A cache that has seen a memory of 4 tokens."""
    cache = cached("growing", SPECS["cross"], 2)
    layer("cross").keep(tokens(2, 4, 13), cache=cache)
    return cache


@pytest.mark.parametrize(
    ("name", "inputs", "options", "message"),
    [
        bad("mha", r"x must be \(batch, tokens, 20\) for mha\(.*; found \(2, 5, 19\)", tokens(2, 5, 19)),
        bad("mha", r"x must be \(batch, tokens, 20\).*found \(5, 20\)", tokens(2, 5)[0]),
        bad("mha", r"x is torch\.float32, the layer's weights are torch\.float64", tokens(2, 5).float()),
        bad("mha", "x is on meta, the layer's weights are on cpu", tokens(2, 5).to("meta")),
        bad("cross", r"needs a memory \(batch, keys, 13\)"),
        bad("cross", r"memory must be \(batch, tokens, 13\).*found \(2, 5, 20\)", tokens(2, 5), tokens(2, 5)),
        bad("cross", "must have the same batch size; found 2 and 3", tokens(2, 5), tokens(3, 5, 13)),
        bad("cross", r"the cache holds a memory of 4 tokens, found one of 5: leave it out, or reset the cache",
            tokens(2, 5), tokens(2, 5, 13), cache=full_memory()),
        bad("mha_rope", r"the 4 newest keys stand at positions of their own, x has 5 tokens",
            kv=layer("mha_rope").keep(tokens(2, 4), positions=torch.arange(4) + 2)),
        bad("cross", "memory is on meta", tokens(2, 5), tokens(2, 5, 13).to("meta")),
        bad("mha", "memory is for cross-attention", tokens(2, 5), tokens(2, 5)),
        bad("mha", "need_weights must be one of none, heads, mean.*found 'all'", need_weights="all"),
        bad("mha", "backend must be one of auto, kernel, plain, tiled, sdpa.*found 'flash'", backend="flash"),
        bad("mha", "form must be one of auto for mha.*found 'absorbed'", form="absorbed"),
        bad("mla", "form must be one of auto, expanded, absorbed for mla.*found 'both'", form="both"),
        bad("linear", "form must be one of auto, recurrent, chunked, quadratic.*found 'tiled'", form="tiled"),
        bad("mha", "the tiled backend never holds the weights", backend="tiled", need_weights="mean"),
        bad("linear", "has no softmax: need_weights must be none", need_weights="heads"),
        bad("linear", r"dropout 0 and backend auto; found 'none', 0\.1 and 'auto'", dropout=0.1),
        bad("mha", r"dropout must lie in \[0, 1\), found 1\.5", dropout=1.5),
        bad("mha", r"visible must be boolean, True = may attend, found torch\.float64; an additive mask is a bias",
            visible=YES.double()),
        bad("mha", r"visible must be boolean, True = may attend, found torch\.int64", visible=YES.long()),
        bad("mha", r"b = 2, h = 3, t = 5, found \(2, 7\); padding \(b, s\) is said by masks\.padding", visible=YES[:2].new_ones(2, 7)),
        bad("mha", r"b = 2, h = 3, t = 5, found \(3, 5, 5\)", visible=YES.expand(3, 5, 5)),
        bad("mha", r"found \(2, 2, 5, 5\)", visible=YES.expand(2, 2, 5, 5)),
        bad("mha", r"found \(5,\)", visible=YES[0]),
        bad("mha", r"visible \(1, 1, 5, 6\) does not fit \(batch, heads, queries, keys\) \(2, 3, 5, 5\)", visible=YES.new_ones(5, 6)),
        bad("mha", r"padding \(2, 6\) does not fit \(batch, keys\) \(2, 5\)", visible=masks.padding(YES.new_ones(2, 6))),
        bad("mha", "must be a predicate of manyheads.ops.masks or booleans", visible=[[True]]),
        bad("linear", "can only leave tokens out: visible must be masks.padding", visible=YES),
        bad("linear", r"padding must be \(batch, tokens so far\) \(2, 5\), found \(2, 6\)", visible=masks.padding(YES.new_ones(2, 6))),
        bad("mha_rope", r"positions must be integers \(5,\) or \(2, 5\), found torch\.int64 \(6,\)", positions=torch.arange(6)),
        bad("mha_rope", r"found torch\.int64 \(3, 5\)", positions=torch.arange(5).expand(3, 5)),
        bad("mha_rope", r"found torch\.float32 \(5,\)", positions=torch.arange(5.0)),
        bad("mha_rope", r"must lie in \[0, 2\^53\), found -1 to 3", positions=torch.arange(5) - 1),
        bad("mha_rope", "found 0 to 9007199254740992", positions=torch.arange(5) * 2**51),
        bad("mha_rope", "positions are on meta, x is on cpu", positions=torch.arange(5).to("meta")),
        bad("mha", r"bias must be \(t, s\) or \(b or 1, h or 1, t, s\), found \(3, 5, 5\)", bias=torch.zeros(3, 5, 5)),
        bad("mha", r"bias \(5, 6\) does not fit \(batch, heads, queries, keys\) \(2, 3, 5, 5\)", bias=torch.zeros(5, 6)),
        bad("mha", "bias is added to the logits and must be floating, found torch.int64", bias=torch.zeros(5, 5).long()),
        bad("linear", "has no logits to add a bias to", bias=torch.zeros(5, 5)),
        bad("buckets", r"needs the stack's table \(8, 6\), or its bias"),
        bad("buckets", r"takes a table \(8, 6\), found \(6, 8\)", table=torch.zeros(6, 8)),
        bad("mha", r"takes no table, found \(8, 3\)", table=torch.zeros(8, 3)),
        bad("mha", r"reads keys and values \(2, 3, s, 8\) and \(2, 3, s, 8\), found \(2, 2, 5, 8\)", kv=(torch.zeros(2, 2, 5, 8),) * 2),
        bad("linear", "keeps a state: it reads no keys and values of others", kv=(torch.zeros(2, 2, 5, 8),) * 2),
        bad("mha", "memory and cache go to the layer that made them", kv=(torch.zeros(2, 3, 5, 8),) * 2,
            cache=cached("growing", SPECS["mha"], 2)),
    ],
)  # fmt: skip
def test_refused(name: str, inputs: tuple, options: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        layer(name)(*inputs, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["growing", "static", "rolling", "int8"])
def test_one_column_over_a_longer_cache_is_refused(kind: str) -> None:
    """It speaks of the newest token alone, and would hide what was padded before from nobody."""
    one = torch.ones(2, 1, dtype=torch.bool)
    for masked, message in (
        ({"visible": masks.padding(one)}, r"padding \(2, 1\) does not fit \(batch, keys\) \(2, 6\); valid:"),
        ({"visible": masks.causal() & masks.padding(one)}, r"padding \(2, 1\) does not fit"),
        ({"visible": one[:, None, None]}, r"visible \(2, 1, 1, 1\) does not fit .* \(2, 6, 1, 6\); valid:"),
        ({"visible": one[:1]}, r"visible \(1, 1, 1, 1\) does not fit"),
        ({"bias": torch.zeros(1, 1, dtype=F)}, r"bias \(1, 1\) does not fit .* \(2, 6, 1, 6\); valid:"),
    ):
        cache = cached(kind, SPECS["window"], 2)
        made, x = layer("window"), tokens(2, 6)
        made(x[:, :5], cache=cache)
        with pytest.raises(SpecError, match=message):
            made(x[:, 5:], cache=cache, **masked)
        assert cache.length == 5


def test_a_layer_that_borrows_must_be_lent_to() -> None:
    spec = AttentionSpec.gqa(20, 6, 2, head_dim=8, source=Borrowed(4))
    with pytest.raises(SpecError, match="reads the keys and values of layer 4: give kv, and no cache"):
        layer(spec)(tokens(2, 5))
    with pytest.raises(SpecError, match="makes no keys and values"):
        layer(spec).keep(tokens(2, 5))
    with pytest.raises(SpecError, match="makes no keys and values"):
        layer("linear").keep(tokens(2, 5))


def test_a_memorys_cache_does_not_know_where_queries_stand() -> None:
    spec = AttentionSpec.gqa(20, 6, 2, head_dim=8, positions=Rope(4), mask=Bidirectional(), source=Cross(13))
    made, memory, x = layer(spec), tokens(2, 7, 13, seed=5), tokens(2, 5)
    cache = cached("growing", spec, 2)
    with pytest.raises(SpecError, match="does not know where the queries stand; give positions"):
        made(x, memory, cache=cache)
    parts = [made(x[:, i : i + 1], memory, cache=cache, positions=torch.tensor([i])) for i in range(5)]
    torch.testing.assert_close(torch.cat(parts, 1), made(x, memory), rtol=1e-12, atol=1e-12)
    alibi = layer(AttentionSpec.gqa(20, 6, 2, head_dim=8, positions=Alibi(), mask=Bidirectional(), source=Cross(13)))
    with pytest.raises(SpecError, match="give positions"):
        alibi(x, memory, cache=cached("growing", alibi.spec, 2))


def test_a_refused_call_leaves_the_cache_as_it_was() -> None:
    made = layer("mha")
    cache = cached("growing", made.spec, 2)
    made(tokens(2, 3), cache=cache)
    for options in ({"need_weights": "all"}, {"visible": YES}, {"bias": torch.zeros(1, 1, 1, 9)}, {"dropout": 2.0}):
        with pytest.raises(SpecError):
            made(tokens(2, 2), cache=cache, **options)
        assert cache.length == 3


def test_not_a_spec() -> None:
    with pytest.raises(SpecError, match="built from an AttentionSpec, found str"):
        Attention("mha(512, 8)")


def test_a_bias_of_zeros_and_ones_is_warned_of() -> None:
    """Case O09: whoever gives a float mask of 0 and 1 means to hide; added to the logits it hides nothing."""
    made, x = layer("mha"), tokens(2, 5)
    with pytest.warns(UserWarning, match="a bias of only 0 and 1 is added to the logits and hides nothing"):
        made(x, bias=YES.double().tril())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bias in (torch.zeros(5, 5, dtype=F), torch.full((5, 5), 0.5, dtype=F), YES.double().requires_grad_()):
            made(x, bias=bias)
