"""Multi-head attention with one fault each: those of the heads, and those of projections, cuts and joins around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations

import torch
from torch import Tensor

from manyheads.check import twins as of_heads
from manyheads.check.faults import written
from manyheads.check.multihead.problem import (
    BIASES,
    Multihead,
    join,
    present,
    project,
    remade,
    whole_answer,
    with_weights,
)
from manyheads.check.problem import Problem, answer
from manyheads.check.twins import Twin, recognise

__all__ = ["TWINS", "diagnose"]

_LONG = {"q": "queries", "k": "keys", "v": "values"}


def diagnose(problem: Multihead, found: Tensor, allowed: float, *, suspects: tuple[str, ...] = ()) -> Twin | None:
    """The twin whose output `found` is, if any; those of `suspects` are tried first."""
    return recognise(TWINS, problem, whole_answer(problem), found, allowed, suspects=suspects)


def _finished(p: Multihead, heads: Tensor) -> Tensor:
    """(b, h, t, d) joined, projected and brought into the axes of judges."""
    return present(join(heads, p), p)


def _around(twin: Twin) -> Twin:
    """A fault of the heads inside of the rest."""
    return replace(twin, output=lambda p: _finished(p, twin.output(p.core)))


def _of_core(change: Callable[[Problem], Problem]) -> Callable[[Multihead], Tensor]:
    return lambda p: _finished(p, answer(change(p.core)))


# projections


def _flat(x: Tensor) -> Tensor:
    """(b, h, t, d) as it leaves a projection: (b, t, h·d)."""
    return x.transpose(1, 2).flatten(2)


def _transposed(names: tuple[str, ...], p: Multihead) -> Tensor:
    """W.T for W, of those that are square."""
    turned = {}
    for name in names:
        weight = p.weights[name]
        matrix = weight.flatten(0, 1) if name == "w_o" else weight.flatten(1)
        if matrix.shape[0] != matrix.shape[1]:
            return whole_answer(p)
        turned[name] = matrix.T.reshape(weight.shape)
    return whole_answer(with_weights(p, **turned))


def _with_weight_of(role: str, other: str, p: Multihead) -> Tensor:
    """One of q, k and v projected with another's weight and bias."""
    if p.weights[f"w_{role}"].shape != p.weights[f"w_{other}"].shape:
        return whole_answer(p)
    taken = {f"w_{role}": p.weights[f"w_{other}"]}
    if f"b_{other}" in p.weights:
        taken[f"b_{role}"] = p.weights[f"b_{other}"]
    return whole_answer(with_weights(p, **taken))


def _swapped(one: str, other: str, p: Multihead) -> Tensor:
    if p.weights[f"w_{one}"].shape != p.weights[f"w_{other}"].shape:
        return whole_answer(p)
    pairs = {f"{letter}_{a}": p.weights[f"{letter}_{b}"] for letter in "wb" for a, b in ((one, other), (other, one))
             if f"{letter}_{b}" in p.weights}  # fmt: skip
    return whole_answer(with_weights(p, **pairs))


def _in_turn(others: str, p: Multihead) -> Tensor:
    """q, k and v projected with the weights of `others`."""
    if len({p.weights[f"w_{role}"].shape for role in "qkv"}) > 1:
        return whole_answer(p)
    taken = {f"{letter}_{role}": p.weights[f"{letter}_{other}"] for letter in "wb" for role, other in zip("qkv", others, strict=True)
             if f"{letter}_{other}" in p.weights}  # fmt: skip
    return whole_answer(with_weights(p, **taken))


def _not_projected(roles: str, p: Multihead) -> Tensor:
    """x cut into heads as it is."""
    plain = {}
    for role, tokens in zip("qkv", p.inputs, strict=True):
        heads, dim = p.weights[f"w_{role}"].shape[1:]
        if role in roles and tokens.shape[-1] != heads * dim:
            return whole_answer(p)
        if role in roles:
            plain[role] = tokens.double().unflatten(-1, (heads, dim)).transpose(1, 2)
    return _of_core(lambda core: replace(core, **plain))(p)


def _without_bias(names: tuple[str, ...], p: Multihead) -> Tensor:
    return whole_answer(remade(p, weights={name: w for name, w in p.weights.items() if name not in names}))


def _without_output(p: Multihead) -> Tensor:
    heads, dim, width = p.weights["w_o"].shape
    if heads * dim != width:
        return whole_answer(p)
    return present(_flat(answer(p.core)), p)


def _projected_from(p: Multihead, **inputs: str) -> Tensor:
    """q, k or v of the other tokens: role -> "x" or "memory"."""
    if p.memory is None or p.memory.shape != p.x.shape:
        return whole_answer(p)
    made = {
        role: project(getattr(p, where), p.weights[f"w_{role}"], p.weights.get(f"b_{role}"))
        for role, where in inputs.items()
    }
    return _of_core(lambda core: replace(core, **made))(p)


# cuts and joins


def _alike(p: Multihead) -> bool:
    return p.q.shape == p.k.shape == p.v.shape


def _cut_interleaved(x: Tensor) -> Tensor:
    b, h, t, d = x.shape
    return _flat(x).reshape(b, t, d, h).permute(0, 3, 1, 2)


def _all_cut(p: Problem, cut: Callable[[Tensor], Tensor]) -> Problem:
    return replace(p, q=cut(p.q), k=cut(p.k), v=cut(p.v))


def _one_cut(role: str, p: Problem) -> Problem:
    """One of q, k and v cut without a transpose."""
    x = getattr(p, role)
    return replace(p, **{role: x.transpose(1, 2).reshape(x.shape)})


def _join_interleaved(out: Tensor) -> Tensor:
    """(b, h, t, d) that, joined by the right rule, is what (b, t, d, h) joined would be."""
    b, h, t, d = out.shape
    return out.permute(0, 2, 3, 1).reshape(b, t, h, d).transpose(1, 2)


def _over_heads(p: Multihead) -> Tensor:
    """(b, t, h, d) never transposed: the heads of one token attend to each other."""
    if not _alike(p):
        return whole_answer(p)
    q, k, v = (x.transpose(1, 2) for x in (p.q, p.k, p.v))
    out = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
    return _finished(p, out.transpose(1, 2))


def _fused_cut(p: Multihead, cut: Callable[[Tensor, int, int], tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """q, k and v side by side, (b, t, 3·h·d), cut in another way."""
    if not _alike(p):
        return whole_answer(p)
    (_, h, _, d), fused = p.q.shape, torch.cat([_flat(x) for x in (p.q, p.k, p.v)], -1)
    q, k, v = cut(fused, h, d)
    return _of_core(lambda core: replace(core, q=q, k=k, v=v))(p)


def _heads_first(fused: Tensor, h: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    b, t, _ = fused.shape
    q, k, v = fused.reshape(b, h, t, 3 * d).chunk(3, -1)
    return q, k, v


def _three_first(fused: Tensor, h: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    b, t, _ = fused.shape
    q, k, v = fused.reshape(3, b, t, h, d).transpose(2, 3)
    return q, k, v


def _three_first_untransposed(fused: Tensor, h: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    b, t, _ = fused.shape
    q, k, v = fused.reshape(3, b, h, t, d)
    return q, k, v


def _three_second(fused: Tensor, h: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    b, t, _ = fused.shape
    q, k, v = fused.reshape(b, 3, h, t, d).unbind(1)
    return q, k, v


def _one_head(p: Multihead) -> Tensor:
    if not _alike(p):
        return whole_answer(p)
    h, d = p.q.shape[1], p.q.shape[3]
    q, k, v = (_flat(x)[:, None] for x in (p.q, p.k, p.v))
    visible = None if p.visible is None else p.visible[:, :1]
    out = answer(replace(p.core, q=q, k=k, v=v, visible=visible))
    return _finished(p, out[:, 0].unflatten(-1, (h, d)).transpose(1, 2))


def _first_head_repeated(p: Problem) -> Problem:
    return _all_cut(p, lambda x: x[:, :1].expand(x.shape))


_CUTS = (
    Twin("attention over heads", "the heads are never moved before the tokens: with (b, t, h, d), q k^T lets the heads of one "
         "token attend to each other; transpose(1, 2) first", _over_heads),
    *(Twin(f"{_LONG[role]} cut without transpose", f"the {_LONG[role]} alone are cut into heads with view(b, h, t, d); the order of the "
           "data is (b, t, h, d): view so, then transpose(1, 2)", _of_core(partial(_one_cut, role))) for role in "qkv"),
    Twin("heads cut interleaved", "the last axis is cut as (dim, heads), so that head h takes every H-th number; the heads lie "
         "side by side: view(b, t, heads, dim)", _of_core(lambda p: _all_cut(p, _cut_interleaved))),
    Twin("heads joined interleaved", "the heads are joined as (dim, heads): number 0 of all heads, then number 1; they are joined "
         "one after the other, (heads, dim): transpose(1, 2) and no further", lambda p: _finished(p, _join_interleaved(answer(p.core)))),
    Twin("heads interleaved", "the last axis is cut and joined as (dim, heads); the heads lie side by side, (heads, dim), in "
         "W_q, W_k, W_v and W_o alike",
         lambda p: _finished(p, _join_interleaved(answer(_all_cut(p.core, _cut_interleaved))))),
    Twin("heads joined in reverse", "the heads are joined in reverse order; head 0 comes first",
         lambda p: _finished(p, answer(p.core).flip(1))),
    Twin("first head repeated", "all heads compute what the first one does: each has numbers of its own in q, k and v",
         _of_core(_first_head_repeated)),
    Twin("one head for all", "q, k and v are not cut into heads: there is one head, as wide as all of them", _one_head),
    Twin("fused heads cut without transpose", "q, k and v of (b, t, 3·h·d) are cut with view(b, h, t, 3·d), which mixes tokens and "
         "heads; view(b, t, ...) first, then transpose", lambda p: _fused_cut(p, _heads_first)),
    Twin("fused parts cut over the batch", "q, k and v of (b, t, 3·h·d) are cut with view(3, b, t, ...), which takes sequences "
         "and tokens for q, k and v; they lie side by side in the last axis", lambda p: _fused_cut(p, _three_first)),
    Twin("fused parts cut over the batch, without transpose", "q, k and v of (b, t, 3·h·d) are cut with view(3, b, h, t, d); they "
         "lie side by side in the last axis", lambda p: _fused_cut(p, _three_first_untransposed)),
    Twin("fused parts cut over the tokens", "q, k and v of (b, t, 3·h·d) are cut with view(b, 3, h, t, d), which takes tokens for "
         "q, k and v; they lie side by side in the last axis", lambda p: _fused_cut(p, _three_second)),
)  # fmt: skip
_PROJECTIONS = (
    Twin("W_o missing", "the heads are joined and returned: the output projection W_o is missing", _without_output),
    Twin("W_o transposed", "W_o is transposed: the other projections say which way round weights are", partial(_transposed, ("w_o",))),
    *(Twin(f"W_{role} transposed", f"W_{role} is transposed: the other projections say which way round weights are",
           partial(_transposed, (f"w_{role}",))) for role in "qkv"),
    Twin("W_q, W_k and W_v transposed", "W_q, W_k and W_v are transposed, and W_o is not", partial(_transposed, ("w_q", "w_k", "w_v"))),
    *(Twin(f"{_LONG[role]} projected with W_{other}", f"the {_LONG[role]} are projected with W_{other}; they have W_{role}",
           partial(_with_weight_of, role, other)) for role, other in permutations("qkv", 2)),
    *(Twin(f"W_{one} and W_{other} swapped", f"W_{one} and W_{other} are swapped", partial(_swapped, one, other))
      for one, other in ("qk", "kv", "qv")),
    *(Twin(f"W_{role} missing", f"the {_LONG[role]} are not projected: x itself is cut into heads",
           partial(_not_projected, role)) for role in "qkv"),
    *(Twin(f"all projected with W_{role}", f"queries, keys and values are all projected with W_{role}", partial(_in_turn, role * 3)) for role in "qkv"),
    Twin("W_q, W_k and W_v in turn", "W_q, W_k and W_v are taken for one another: keys for queries, values for keys, queries for "
         "values", partial(_in_turn, "kvq")),
    Twin("W_q, W_k and W_v in turn, the other way", "W_q, W_k and W_v are taken for one another: values for queries, queries for keys, "
         "keys for values", partial(_in_turn, "vqk")),
    Twin("W_q, W_k and W_v missing", "nothing is projected: x itself is cut into heads", partial(_not_projected, "qkv")),
    Twin("biases missing", "the biases have no effect", partial(_without_bias, BIASES)),
    *(Twin(f"b_{role} missing", f"the bias b_{role} has no effect", partial(_without_bias, (f"b_{role}",))) for role in "qvo"),
    Twin("b_q, b_k and b_v missing", "the biases of q, k and v have no effect", partial(_without_bias, BIASES[:3])),
    Twin("memory ignored", "keys and values are projected from x; they come from the memory", lambda p: _projected_from(p, k="x", v="x")),
    Twin("values from x", "the values are projected from x; they come from the memory, as the keys do", lambda p: _projected_from(p, v="x")),
    Twin("keys from x", "the keys are projected from x; they come from the memory, as the values do", lambda p: _projected_from(p, k="x")),
    Twin("queries from the memory", "the queries are projected from the memory; they come from x",
         lambda p: _projected_from(p, q="memory")),
    Twin("memory and x swapped", "the queries are projected from the memory, keys and values from x; it is the other way round",
         lambda p: _projected_from(p, q="memory", k="x", v="x")),
    Twin("scale by x's width / heads", "the scores are divided by sqrt(x's width / heads); it is sqrt(dim), and heads are as wide as "
         "their weights say", lambda p: _finished(p, written(p.core, scale=(p.width / p.q.shape[1]) ** -0.5))),
    Twin("scale by x's width", "the scores are divided by sqrt(x's width); it is sqrt(dim), the width of one head",
         lambda p: _finished(p, written(p.core, scale=p.width ** -0.5))),
    Twin("x added", "x is added to the output, as a block around attention does; attention alone does not",
         lambda p: whole_answer(p) + present(p.x.double(), p) if p.x.shape[-1] == p.weights["w_o"].shape[-1] else whole_answer(p)),
)  # fmt: skip
TWINS = (*(_around(twin) for twin in of_heads.TWINS), *_CUTS, *_PROJECTIONS)
"""In the order in which they are tried."""
