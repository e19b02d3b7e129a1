"""Linear attention three ways: token by token, all pairs at once, chunk by chunk. One function, whatever the length.

A state S (f x v) a head is decayed, written to and read for each token:

    sum          S_t = S_(t-1) + k_t v_t^T                                       (arXiv 2006.16236)
    gated        S_t = D_t S_(t-1) + k_t v_t^T                                   (arXiv 2312.06635)
    delta        S_t = S_(t-1) + k_t u_t^T,       u_t = beta_t (v_t - S_(t-1)^T k_t)         (arXiv 2406.06484)
    gated_delta  S_t = D_t S_(t-1) + k_t u_t^T,   u_t = beta_t (v_t - (D_t S_(t-1))^T k_t)   (arXiv 2412.06464)

    y_t = scale · S_t^T q_t, normalised: divided by scale · z_t^T q_t with z_t = D_t z_(t-1) + k_t

D_t = diag(exp(decay_t)), one number a head or one a feature; q and k are features already (`features`). These are the
update rules of ONNX's LinearAttention. Computed in float32 or wider; the state stays that wide.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops.arguments import check_scale
from manyheads.ops.layout import shapes
from manyheads.ops.precision import in_full, wide
from manyheads.quoting import shown
from manyheads.spec import check

__all__ = ["LinearState", "chunked", "features", "quadratic", "recurrent"]

RULES = ("sum", "gated", "delta", "gated_delta")


@dataclass(frozen=True, eq=False)
class LinearState:
    """What is kept of the past: `sums` (b, n, f, v) and, where normalised, `norms` (b, n, f), in float32 or wider."""

    sums: Tensor
    norms: Tensor | None = None


def features(x: Tensor, kind: str, weight: Tensor | None = None) -> Tensor:
    """The feature map phi on x (b, h, t, q): "identity", "elu+1" (elu(x) + 1, arXiv 2006.16236), "relu", or "learned":
    relu(x W_h) with `weight` (h, q, f) (arXiv 2103.13076, without its bias). Computed in float32 or wider.
    """
    if (weight is not None) != (kind == "learned"):
        raise SpecError(f"feature map {kind} {'has no' if weight is not None else 'needs a'} weight")
    wider = x.to(wide(x.dtype))
    if weight is not None:
        wider = torch.relu(wider @ weight.to(wider.dtype))
    elif kind == "elu+1":
        wider = torch.nn.functional.elu(wider) + 1
    elif kind == "relu":
        wider = torch.relu(wider)
    elif kind != "identity":
        raise SpecError(f"feature map must be one of identity, elu+1, relu, learned; found {shown(kind)}")
    return wider.to(x.dtype)


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rule: str = "sum",
    scale: float = 1.0,
    normalised: bool = False,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    keep: Tensor | None = None,
    state: LinearState | None = None,
) -> tuple[Tensor, LinearState]:
    """y (b, y, t, v) and the state after the last token, by the equations above, one token after the other.

    q (b, h, t, f), k (b, k, t, f), v (b, j, t, v): head counts divide one another; there are n = max(k, j) states and
    y = max(h, n) outputs, and head i of many reads head i // (many / few) of few.

    decay   (b, n, t) or (b, n, t, f), the logarithm of what is kept: 0 keeps all (gated rules)
    beta    (b, n or 1, t), the writing strength (delta rules)
    keep    (b, t) boolean, True = a token: the others neither write nor decay, after the feature map (case O98)
    state   what came before; None for nothing
    """
    asked = _ask(q, k, v, rule=rule, scale=scale, normalised=normalised, decay=decay, beta=beta, keep=keep, state=state)
    with in_full(q):
        return _steps(asked)


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rule: str = "sum",
    scale: float = 1.0,
    normalised: bool = False,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    keep: Tensor | None = None,
    state: LinearState | None = None,
    size: int = 64,
) -> tuple[Tensor, LinearState]:
    """`recurrent` with all pairs inside a chunk of `size` tokens at once and the state carried between chunks."""
    check.size("tokens in a chunk", size)
    asked = _ask(q, k, v, rule=rule, scale=scale, normalised=normalised, decay=decay, beta=beta, keep=keep, state=state)
    with in_full(q):
        return _run(asked, size=size)


def quadratic(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rule: str = "sum",
    scale: float = 1.0,
    normalised: bool = False,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    keep: Tensor | None = None,
    state: LinearState | None = None,
    causal: bool = True,
) -> tuple[Tensor, LinearState]:
    """`recurrent` from the t x t matrix of all pairs: y = (tril(q k^T · decays)) u. Not `causal`: every token reads the
    state after the last one (rule sum only).
    """
    asked = _ask(q, k, v, rule=rule, scale=scale, normalised=normalised, decay=decay, beta=beta, keep=keep, state=state)
    if causal:
        with in_full(q):
            return _run(asked, size=max(q.shape[2], 1))
    if rule != "sum":
        raise SpecError(f"rule {rule} depends on order: without causality only sum is defined")
    with in_full(q):
        return _both_ways(asked)


@dataclass(frozen=True, eq=False)
class _Asked:
    """One call, widened and spread over n states of g readers: q (b,n,g,t,f) scaled, the others with g = 1."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor | None  # (b, n, 1, t, 1 or f)
    beta: Tensor | None  # (b, n or 1, 1, t, 1)
    sums: Tensor  # (b, n, 1, f, v)
    norms: Tensor | None  # (b, n, 1, f)
    dtype: torch.dtype


def _steps(asked: _Asked) -> tuple[Tensor, LinearState]:
    """Token after token, as the equations say."""
    sums, norms, outs, totals = asked.sums, asked.norms, [], []
    for i in range(asked.q.shape[-2]):
        q_i, k_i, u_i = asked.q[..., i, :], asked.k[..., i, :], asked.v[..., i, :]
        if asked.decay is not None:
            fade = torch.exp(asked.decay[..., i, :])
            sums, norms = fade[..., None] * sums, None if norms is None else fade * norms
        if asked.beta is not None:
            u_i = asked.beta[..., i, :] * (u_i - (k_i[..., None, :] @ sums).squeeze(-2))
        sums = sums + k_i[..., :, None] * u_i[..., None, :]
        outs.append((q_i[..., None, :] @ sums).squeeze(-2))
        if norms is not None:
            norms = norms + k_i
            totals.append((q_i * norms).sum(-1, keepdim=True))
    return _result(asked, outs, totals, sums, norms, stack=True)


def _both_ways(asked: _Asked) -> tuple[Tensor, LinearState]:
    """Every token reads the sum over all tokens."""
    sums = asked.sums + asked.k.mT @ asked.v
    outs, totals, norms = [asked.q @ sums], [], asked.norms
    if norms is not None:
        norms = norms + asked.k.sum(-2)
        totals = [asked.q @ norms[..., None]]
    return _result(asked, outs, totals, sums, norms)


def _run(asked: _Asked, *, size: int) -> tuple[Tensor, LinearState]:
    """Chunk after chunk; within one, all pairs i >= j weighted by the decay between them.

    With G the running sum of decays, u solves (1 + L) u = beta (v - (k e^G) S), L_ij = beta_i k_i e^(G_i - G_j) k_j, i > j.
    """
    sums, norms, outs, totals = asked.sums, asked.norms, [], []
    for start in range(0, asked.q.shape[-2], size):
        q, k, u = (x[..., start : start + size, :] for x in (asked.q, asked.k, asked.v))
        run = None if asked.decay is None else asked.decay[..., start : start + size, :].cumsum(-2)
        into = 1.0 if run is None else torch.exp(run)
        if asked.beta is not None:
            beta = asked.beta[..., start : start + size, :]
            known = beta * (u - (k * into) @ sums)
            u = torch.linalg.solve_triangular(beta * _pairs(k, k, run), known, upper=False, unitriangular=True)
        weights = _pairs(q, k, run)
        outs.append((q * into) @ sums + weights @ u)
        if norms is not None:
            totals.append((q * into) @ norms[..., None] + weights.sum(-1, keepdim=True))
        if run is not None:
            last = run[..., -1:, :]
            fade, k = torch.exp(last), k * torch.exp(last - run)
            sums, norms = fade.mT * sums, None if norms is None else fade.squeeze(-2) * norms
        sums, norms = sums + k.mT @ u, None if norms is None else norms + k.sum(-2)
    return _result(asked, outs, totals, sums, norms)


def _pairs(x: Tensor, k: Tensor, run: Tensor | None) -> Tensor:
    """tril of x_i · e^(G_i - G_j) k_j, (.., t, t); only differences of G are raised, which are never above their cause."""
    below = torch.ones(x.shape[-2], k.shape[-2], dtype=torch.bool, device=x.device).tril()
    if run is None:
        return (x @ k.mT).masked_fill(~below, 0.0)
    between = (run[..., :, None, :] - run[..., None, :, :]).masked_fill(~below[..., None], -torch.inf)
    if run.shape[-1] == 1:
        return (x @ k.mT) * torch.exp(between).squeeze(-1)
    return torch.einsum("bngif,bnijf,bnjf->bngij", x, torch.exp(between).squeeze(2), k.squeeze(2))


def _result(
    asked: _Asked,
    outs: list[Tensor],
    totals: list[Tensor],
    sums: Tensor,
    norms: Tensor | None,
    *,
    stack: bool = False,
) -> tuple[Tensor, LinearState]:
    """The outputs together, divided where normalised, as (b, y, t, v) in the dtype of the call."""
    b, n, g, t, _ = asked.q.shape
    join = torch.stack if stack else torch.cat
    if outs:
        out = join(outs, -2)
    else:  # no tokens: empty and unchanged, and still functions of what was given
        out, sums = asked.q @ sums, sums + asked.k.mT @ asked.v
    state = LinearState(sums.squeeze(2), None if norms is None else norms.squeeze(2))
    if totals:
        total = join(totals, -2)
        out = out / torch.where(total == 0, 1.0, total)
    return out.reshape(b, n * g, t, out.shape[-1]).to(asked.dtype), state


def _ask(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rule: str,
    scale: float,
    normalised: bool,
    decay: Tensor | None,
    beta: Tensor | None,
    keep: Tensor | None,
    state: LinearState | None,
) -> _Asked:
    check_scale(scale)
    states = _check(q, k, v, rule=rule, normalised=normalised, decay=decay, beta=beta, keep=keep)
    compute, (b, _, t, f) = wide(q.dtype), q.shape
    if keep is not None:
        k, v = (torch.where(keep[:, None, :, None], x, 0.0) for x in (k, v))
    spread_q = _spread(q, max(q.shape[1], states)).to(compute) * scale
    if decay is not None:
        decay = (decay if decay.dim() == 4 else decay[..., None]).to(compute)[:, :, None]
        decay = decay if keep is None else torch.where(keep[:, None, None, :, None], decay, 0.0)
    sums, norms = _start(q, v, states, normalised=normalised, state=state)
    return _Asked(
        spread_q.reshape(b, states, spread_q.shape[1] // states, t, f),
        _spread(k, states).to(compute)[:, :, None], _spread(v, states).to(compute)[:, :, None],
        decay, None if beta is None else beta.to(compute)[:, :, None, :, None], sums, norms, q.dtype,
    )  # fmt: skip


def _spread(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _start(
    q: Tensor,
    v: Tensor,
    states: int,
    *,
    normalised: bool,
    state: LinearState | None,
) -> tuple[Tensor, Tensor | None]:
    compute, shape = wide(q.dtype), (q.shape[0], states, q.shape[3], v.shape[3])
    if state is None:
        sums = torch.zeros(shape, dtype=compute, device=q.device)
        return sums[:, :, None], sums.new_zeros(shape[:3])[:, :, None] if normalised else None
    found = tuple(state.sums.shape), None if state.norms is None else tuple(state.norms.shape)
    if found != (shape, shape[:3] if normalised else None):
        wanted = f"sums {shape}, norms {shape[:3] if normalised else None}"
        raise SpecError(f"the state of another layer: it has sums {found[0]}, norms {found[1]}; needed are {wanted}")
    return state.sums.to(compute)[:, :, None], None if state.norms is None else state.norms.to(compute)[:, :, None]


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rule: str,
    normalised: bool,
    decay: Tensor | None,
    beta: Tensor | None,
    keep: Tensor | None,
) -> int:
    """The number of states; a SpecError names what does not fit."""
    if not q.dim() == k.dim() == v.dim() == 4 or not q.shape[0] == k.shape[0] == v.shape[0]:
        raise SpecError(
            f"q, k and v must each be (batch, heads, tokens, dim) of one batch; found {shapes(q=q, k=k, v=v)}"
        )
    if not q.shape[2] == k.shape[2] == v.shape[2] or q.shape[3] != k.shape[3]:
        raise SpecError(f"q, k and v must have as many tokens, q and k one width; found {shapes(q=q, k=k, v=v)}")
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise SpecError(f"q, k and v must share one floating dtype; found {q.dtype}, {k.dtype}, {v.dtype}")
    if rule not in RULES:
        raise SpecError(f"rule must be one of {', '.join(RULES)}; found {shown(rule)}")
    if ("gated" in rule) != (decay is not None) or ("delta" in rule) != (beta is not None):
        raise SpecError(
            f"rule {rule} needs {'a' if 'gated' in rule else 'no'} decay and {'a' if 'delta' in rule else 'no'} beta; "
            f"found {'no' if decay is None else 'a'} decay and {'no' if beta is None else 'a'} beta"
        )
    if normalised and beta is not None:
        raise SpecError(f"rule {rule} takes back what it wrote: it has no running norm to divide by")
    (b, h, t, f), states = q.shape, max(k.shape[1], v.shape[1])
    if min(h, k.shape[1], v.shape[1]) < 1 or states % k.shape[1] or states % v.shape[1]:
        raise SpecError(f"key heads and value heads must divide one another; found {shapes(q=q, k=k, v=v)}")
    if max(h, states) % min(h, states):
        raise SpecError(
            f"query heads {h} and states {states}: one must divide the other; found {shapes(q=q, k=k, v=v)}"
        )
    if decay is not None and tuple(decay.shape) not in ((b, states, t), (b, states, t, 1), (b, states, t, f)):
        raise SpecError(f"decay must be {(b, states, t)} or {(b, states, t, f)}, found {tuple(decay.shape)}")
    if beta is not None and tuple(beta.shape) not in ((b, states, t), (b, 1, t)):
        raise SpecError(f"beta must be {(b, states, t)} or {(b, 1, t)}, found {tuple(beta.shape)}")
    if keep is not None and (keep.dtype != torch.bool or tuple(keep.shape) != (b, t)):
        raise SpecError(f"keep must be boolean {(b, t)}, True = a token; found {keep.dtype} {tuple(keep.shape)}")
    return states
