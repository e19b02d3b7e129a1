"""Bad calls are refused at the door, by one line with the names and numbers."""

from __future__ import annotations

import pytest
import torch

from manyheads.errors import SpecError
from manyheads.ops import bias, latent, linear, masks, norm, rope, sdpa, softmax, tiled
from manyheads.ops.call import AttentionCall
from manyheads.spec.positions import DynamicScaling, Rope

FORMS = {"softmax": softmax.attention, "tiled": tiled.attention, "sdpa": sdpa.attention, "call": AttentionCall.checked}


def qkv(h: int = 4, k: int = 2, *, q: int = 8, v: int = 3) -> tuple[torch.Tensor, ...]:
    return torch.randn(2, h, 5, q), torch.randn(2, k, 7, q), torch.randn(2, k, 7, v)


Q, K, V = qkv()
CALLS = {
    "rank": ((Q[0], K, V), {}, "(batch, heads, tokens, dim)"),
    "batch": ((Q[:1], K, V), {}, "(1, 4, 5, 8)"),
    "widths": ((Q[..., :5], K, V), {}, "found 5 and 8"),
    "value heads": ((Q, K, V[:, :1]), {}, "same heads and tokens"),
    "value tokens": ((Q, K, V[:, :, :6]), {}, "(2, 2, 6, 3)"),
    "O23 heads that do not divide": (qkv(5, 2), {}, "5 query heads are not a multiple of 2"),
    "dtypes": ((Q, K.double(), V), {}, "torch.float64"),
    "integers": ((Q.long(), K.long(), V.long()), {}, "floating"),
    "devices": ((Q, K.to("meta"), V), {}, "cpu, meta, cpu"),
    "O09 a float mask": ((Q, K, V), {"visible": torch.ones(5, 7)}, "True = may attend"),
    "mask shape": ((Q, K, V), {"visible": torch.ones(5, 6, dtype=torch.bool)}, "(1, 1, 5, 6)"),
    "O10 a mask a sequence without its head axis": (
        (Q, K, V), {"visible": torch.ones(2, 5, 7, dtype=torch.bool)},
        "does not fit (batch, heads, queries, keys) (2, 4, 5, 7)"),
    "padding": ((Q, K, V), {"visible": masks.padding(torch.ones(2, 6, dtype=torch.bool))}, "(2, 6)"),
    "one column of padding": (
        (Q, K, V), {"visible": masks.padding(torch.ones(2, 1, dtype=torch.bool))},
        "padding (2, 1) does not fit (batch, keys) (2, 7); valid: these sizes, or 1 for any of them but the keys"),
    "one column of a mask": (
        (Q, K, V), {"visible": torch.ones(2, 1, 5, 1, dtype=torch.bool)},
        "visible (2, 1, 5, 1) does not fit (batch, heads, queries, keys) (2, 4, 5, 7); valid: these sizes, or 1"),
    "one column within a mask": (
        (Q, K, V), {"visible": masks.causal() & masks.padding(torch.ones(1, 1, dtype=torch.bool))}, "padding (1, 1)"),
    "one column over many tiles": (
        (Q, *torch.randn(2, 2, 2, 600, 8)), {"visible": masks.padding(torch.ones(2, 1, dtype=torch.bool)), "softcap": 5.0},
        "(batch, keys) (2, 600)"),
    "one column of a bias": (
        (Q, K, V), {"bias": torch.zeros(5, 1)}, "bias (5, 1) does not fit (batch, heads, queries, keys) (2, 4, 5, 7)"),
    "a bias that is a number": ((Q, K, V), {"bias": torch.tensor(1.0)}, "bias () does not fit"),
    "lengths": ((Q, K, V), {"visible": masks.lengths(torch.tensor([1, 2, 3]))}, "(3,)"),
    "masks a head": ((Q, K, V), {"visible": masks.per_head(masks.causal())}, "1 masks"),
    "key positions": ((Q, K, V), {"visible": masks.placed(masks.causal(), torch.arange(6))}, "(6,)"),
    "bias shape": ((Q, K, V), {"bias": torch.zeros(2, 5, 7)}, "(2, 5, 7) does not fit"),
    "bias of booleans": ((Q, K, V), {"bias": torch.ones(5, 7, dtype=torch.bool)}, "goes in visible"),
    "alibi": ((Q, K, V), {"bias": bias.Alibi(bias.alibi_slopes(3))}, "(4,); found torch.float64 (3,)"),
    "softcap": ((Q, K, V), {"softcap": 0.0}, "above 0"),
    "sinks": ((Q, K, V), {"sinks": torch.zeros(2)}, "(4,); found torch.float32 (2,)"),
    "dropout": ((Q, K, V), {"dropout": 1.0}, "[0, 1)"),
    "offset": ((Q, K, V), {"offset": torch.tensor([1, 2, 3])}, "(2,)"),
    "offset of floats": ((Q, K, V), {"offset": torch.tensor(1.5)}, "torch.float32"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CALLS)
def test_attention_refuses(name: str, form: str) -> None:
    tensors, keywords, words = CALLS[name]
    with pytest.raises(SpecError) as told:
        FORMS[form](*tensors, scale=0.5, **keywords)
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_a_stage_that_is_none() -> None:
    with pytest.raises(SpecError, match="scaled, capped, masked, probabilities; found 'raw'"):
        softmax.scores(Q, K, scale=1.0, stage="raw")


ONES = torch.ones(2, 7, dtype=torch.bool)
SMALL = {
    "O57 window 0": (lambda: masks.window(0), "window must be an integer of 1 or more, found 0"),
    "O57 window None": (lambda: masks.window(None), "found None"),
    "a negative radius": (lambda: masks.band(-1), "found -1"),
    "chunk of 0": (lambda: masks.chunk(0), "found 0"),
    "padding rank": (lambda: masks.padding(ONES[0]), "(batch, keys), found (7,)"),
    "O06 padding of floats": (lambda: masks.padding(ONES.float()), "True = may attend, found torch.float32"),
    "lengths of floats": (lambda: masks.lengths(torch.ones(2)), "torch.float32"),
    "no mask a head": (masks.per_head, "found none"),
    "five axes": (lambda: masks.dense(ONES[None, None, None]), "(1, 1, 1, 2, 7)"),
    "positions of booleans": (lambda: masks.placed(masks.causal(), ONES), "integers"),
    "rope wider than the head": (
        lambda: rope.apply(Q, torch.ones(5, 5), torch.ones(5, 5)), "turns 10 elements, but heads have 8"),
    "rope layout": (lambda: rope.apply(Q, torch.ones(5, 4), torch.ones(5, 4), "pairs"), "found 'pairs'"),
    "dynamic rope without a length": (
        lambda: rope.angles(torch.arange(3), Rope(8, scaling=DynamicScaling(2.0, 16))), "give length"),
    "gain without a weight": (lambda: norm.rms(Q, eps=1e-6), "gain w needs a weight"),
    "gain of another size": (lambda: norm.rms(Q, torch.ones(7), eps=1e-6), "(7,)"),
    "gain by another name": (lambda: norm.rms(Q, torch.ones(8), eps=1e-6, gain="g"), "found 'g'"),
    "odd sinusoids": (lambda: bias.sinusoids(torch.arange(3), 5), "found 5"),
    "sinusoid layout": (lambda: bias.sinusoids(torch.arange(3), 4, layout="x"), "found 'x'"),
    "no heads": (lambda: bias.alibi_slopes(0), "found 0"),
    "no buckets": (
        lambda: bias.relative_buckets(torch.arange(3), num_buckets=1, max_distance=8, two_sided=False), "1 and max"),
    "latent and rotary key": (
        lambda: latent.expanded(Q, Q, torch.ones(2, 7, 6), torch.ones(2, 6, 8), torch.ones(4, 8, 6), torch.ones(4, 3, 6),
                                scale=1.0), "(2, 7, 6) and (2, 6, 8)"),
    "rotary query": (
        lambda: latent.absorbed(Q, Q[..., :3], torch.ones(2, 7, 6), torch.ones(2, 7, 8), torch.ones(4, 8, 6),
                                torch.ones(4, 3, 6), scale=1.0), "(2, 4, 5, 8)"),
    "key up-projection": (
        lambda: latent.absorbed(Q, Q, torch.ones(2, 7, 6), torch.ones(2, 7, 8), torch.ones(4, 6, 8),
                                torch.ones(4, 3, 6), scale=1.0), "(4, 8, 6), found (4, 6, 8)"),
    "value up-projection": (
        lambda: latent.absorbed(Q, Q, torch.ones(2, 7, 6), torch.ones(2, 7, 8), torch.ones(4, 8, 6),
                                torch.ones(3, 3, 6), scale=1.0), "(3, 3, 6)"),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_the_small_functions_refuse(name: str) -> None:
    call, words = SMALL[name]
    with pytest.raises(SpecError) as told:
        call()
    assert words in str(told.value)
    assert "\n" not in str(told.value)


A = torch.rand(2, 4, 5, 3)
ONE_HEAD = torch.zeros(2, 4, 5)
LINEAR = {
    "rule": ({"rule": "hebb"}, "found 'hebb'"),
    "gated without decay": ({"rule": "gated"}, "needs a decay"),
    "sum with beta": ({"beta": ONE_HEAD}, "no beta"),
    "normalised delta": ({"rule": "delta", "beta": ONE_HEAD, "normalised": True}, "no running norm"),
    "decay shape": ({"rule": "gated", "decay": ONE_HEAD[:, :2]}, "found (2, 2, 5)"),
    "beta shape": ({"rule": "delta", "beta": ONE_HEAD[..., None]}, "found (2, 4, 5, 1)"),
    "keep of integers": ({"keep": torch.ones(2, 5, dtype=torch.long)}, "torch.int64"),
    "state": ({"state": linear.LinearState(torch.zeros(2, 4, 3, 4))}, "sums (2, 4, 3, 4)"),
    "state without norms": ({"normalised": True, "state": linear.LinearState(torch.zeros(2, 4, 3, 3))}, "norms None"),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_attention_refuses(name: str) -> None:
    keywords, words = LINEAR[name]
    with pytest.raises(SpecError) as told:
        linear.recurrent(A, A, A, **keywords)
    assert words in str(told.value)


def test_linear_attention_refuses_shapes_and_features() -> None:
    for tensors, words in (
        ((A, A[:, :3], A[:, :2]), "divide one another"),
        ((A[:, :3], A[:, :2], A[:, :2]), "query heads 3 and states 2"),
        ((A, A[:, :, :4], A), "as many tokens"),
        ((A, A.double(), A), "one floating dtype"),
        ((A[0], A, A), "one batch"),
    ):
        with pytest.raises(SpecError, match=words):
            linear.recurrent(*tensors)
    with pytest.raises(SpecError, match="depends on order"):
        linear.quadratic(A, A, A, rule="delta", beta=ONE_HEAD, causal=False)
    with pytest.raises(SpecError, match="found 0"):
        linear.chunked(A, A, A, size=0)
    for kind, weight, words in (("relu", A, "has no weight"), ("learned", None, "needs a"), ("exp", None, "'exp'")):
        with pytest.raises(SpecError, match=words):
            linear.features(A, kind, weight)
