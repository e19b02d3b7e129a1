"""The scores that came before, each by its paper's formula, pair by pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops import classic, softmax

f64 = torch.float64
T, S, M, E, A, V = 3, 4, 5, 6, 7, 2


def draw(*sizes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(size, dtype=f64, requires_grad=True) for size in sizes]


def by_pairs(score: object, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.zeros(2, T, S, dtype=f64)
    for b in range(2):
        for i in range(T):
            terms = {j: torch.exp(score(b, i, j)) for j in range(S) if seen[i, j]}
            for j, term in terms.items():
                weights[b, i, j] = term / sum(terms.values())
    return weights @ v, weights


SEEN = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])


@pytest.mark.parametrize("seen", [None, SEEN], ids=["all", "masked"])
def test_scores_pair_by_pair(seen: Tensor | None) -> None:
    q, k, v, same = draw((2, T, M), (2, S, E), (2, S, V), (2, S, M))
    w_q, w_k, w, both, w_score = draw((A, M), (A, E), (M, E), (A, M + E), (A,))
    found = {
        "additive": (
            classic.additive(q, k, v, w_q=w_q, w_k=w_k, w_score=w_score, visible=seen),
            lambda b, i, j: w_score @ torch.tanh(w_q @ q[b, i] + w_k @ k[b, j]),
        ),
        "dot": (classic.dot(q, same, v, visible=seen), lambda b, i, j: q[b, i] @ same[b, j]),
        "general": (classic.general(q, k, v, w=w, visible=seen), lambda b, i, j: q[b, i] @ w @ k[b, j]),
        "concat": (
            classic.concat(q, k, v, w=both, w_score=w_score, visible=seen),
            lambda b, i, j: w_score @ torch.tanh(both @ torch.cat((q[b, i], k[b, j]))),
        ),
    }
    for (context, weights), score in found.values():
        want, shares = by_pairs(score, v, torch.ones(T, S, dtype=torch.bool) if seen is None else seen)
        assert torch.allclose(weights, shares, atol=1e-13)
        assert torch.allclose(context, want, atol=1e-13)


def test_a_query_that_sees_nothing() -> None:
    q, k = draw((2, T, M), (2, S, M))
    context, weights = classic.dot(q, k, visible=SEEN)
    assert not context[:, 1].any()
    assert not weights[:, 1].any()
    assert all(g.isfinite().all() for g in torch.autograd.grad(context.sum(), (q, k)))


def test_values_are_the_keys_unless_given() -> None:
    q, k = draw((2, T, M), (2, S, M))
    context, weights = classic.dot(q, k)
    assert torch.allclose(context, weights @ k)


def test_luongs_dot_is_one_head_without_its_scale() -> None:
    q, k, v = draw((2, T, M), (2, S, M), (2, S, V))
    one_head = softmax.attention(q[:, None], k[:, None], v[:, None], scale=1.0)[:, 0]
    assert torch.allclose(classic.dot(q, k, v)[0], one_head, atol=1e-14)


def test_intra_attention_step_by_step() -> None:
    """Cheng 2016, equations 4 to 6: two steps of a tape, the summary of the first feeding the second."""
    x, tape, memory = draw((2, T, M), (2, S, E), (2, S, E))
    w_tape, w_x, w_summary, w_score = draw((A, E), (A, M), (A, E), (A,))
    weights_of = {"w_tape": w_tape, "w_x": w_x, "w_summary": w_summary, "w_score": w_score}
    summary = torch.zeros(2, E, dtype=f64)
    for t, length in ((1, 2), (2, 3)):
        held, cells = tape[:, :length], memory[:, :length]
        new, weights = classic.intra(x[:, t], held, summary, **weights_of)
        cell, again = classic.intra(x[:, t], held, summary, cells, **weights_of)
        for b in range(2):
            scores = torch.stack(
                [
                    w_score @ torch.tanh(w_tape @ held[b, j] + w_x @ x[b, t] + w_summary @ summary[b])
                    for j in range(length)
                ]
            )
            assert torch.allclose(weights[b], torch.softmax(scores, 0), atol=1e-13)
            assert torch.allclose(new[b], torch.softmax(scores, 0) @ held[b], atol=1e-13)
            assert torch.allclose(cell[b], torch.softmax(scores, 0) @ cells[b], atol=1e-13)
        assert torch.equal(weights, again)
        summary = new


def test_bf16_is_computed_wide() -> None:
    q, k = torch.randn(2, T, M).bfloat16(), torch.randn(2, S, M).bfloat16()
    context, weights = classic.dot(q, k)
    exact, shares = classic.dot(q.double(), k.double())
    assert (context.dtype, weights.dtype) == (torch.bfloat16, torch.bfloat16)
    assert (weights.double() - shares).abs().max() < 2**-8
    assert (context.double() - exact).abs().max() < 2**-7


def test_gradcheck() -> None:
    q, k, w_q, w_k, w_score = draw((1, 2, 3), (1, 3, 2), (4, 3), (4, 2), (4,))

    def call(q: Tensor, k: Tensor, w_q: Tensor, w_k: Tensor, w_score: Tensor) -> Tensor:
        return classic.additive(q, k, w_q=w_q, w_k=w_k, w_score=w_score)[0]

    assert torch.autograd.gradcheck(call, (q, k, w_q, w_k, w_score))


def test_refusals() -> None:
    q, k, w = draw((2, T, M), (2, S, E), (A, A))
    for call, words in (
        (lambda: classic.dot(q, k), "found 5 and 6"),
        (lambda: classic.general(q, k, w=w), r"w must be \(5, 6\), found \(7, 7\)"),
        (lambda: classic.concat(q, k, w=w, w_score=w[0]), r"\(7, 11\)"),
        (lambda: classic.additive(q, k, w_q=w, w_k=w, w_score=w[0]), r"w_q must be \(7, 5\)"),
        (lambda: classic.dot(q, q, visible=torch.ones(T, T)), "True = may attend"),
        (
            lambda: classic.dot(q, q, visible=torch.ones(2, T, 1, dtype=torch.bool)),
            r"visible \(2, 3, 1\) does not fit \(batch, queries, keys\) \(2, 3, 3\)",
        ),
    ):
        with pytest.raises(SpecError, match=words):
            call()
