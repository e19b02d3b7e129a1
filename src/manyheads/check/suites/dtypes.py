"""Number formats: float64 stays exact, 16 bits are summed in 32, and the result has the format of the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from manyheads.check.case import Case, Finding, Judge, Skip, self_attention
from manyheads.check.problem import Problem, Sizes
from manyheads.check.subject import Subject
from manyheads.check.suites.basics import FULL, plain

__all__ = ["CASES"]

_LONG = Sizes(batch=1, heads=2, kv_heads=2, queries=32, keys=512, dim=16, value_dim=16)
_BEYOND = Sizes(batch=1, heads=2, kv_heads=2, queries=3, keys=3, dim=16, value_dim=16)
_ERROR = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 2.5e-3, torch.bfloat16: 1e-2}


def _spread(sizes: Sizes, generator: torch.Generator) -> Problem:
    """Scores spread over tens, where half a step of 16 bits is a few per cent of a weight."""
    s = sizes
    q = torch.randint(-16, 17, (s.batch, s.heads, s.queries, s.dim), generator=generator) / 4
    k = torch.randint(-16, 17, (s.batch, s.kv_heads, s.keys, s.dim), generator=generator) / 4
    v = torch.randint(-16, 17, (s.batch, s.kv_heads, s.keys, s.value_dim), generator=generator) / 16
    return Problem(q=q, k=k, v=v)


def _beyond(sizes: Sizes, generator: torch.Generator) -> Problem:
    """Key 0 has the product 72 · 72 · 16 = 82,944 with every query, more than float16 holds (65,504); the next ones
    72 · 72 · 14 and 72 · 72 · 12. Scaled, all fit, and key 0 takes everything."""
    s = sizes
    signs = torch.ones(s.keys, s.dim)
    for key in range(s.keys):
        signs[key, :key] = -1
    problem = plain(s, generator)
    k = (72 * signs).expand(s.batch, s.kv_heads, s.keys, s.dim).contiguous()
    return replace(problem, q=torch.full_like(problem.q, 72.0), k=k)


def precise(dtype: torch.dtype) -> Judge:
    """In `dtype` the output has its input's format and is as exact as the format allows."""

    def judge(subject: Subject, problem: Problem) -> Finding | Skip | None:
        subject = replace(subject, dtype=dtype)
        problem = subject.prepare(problem)
        out, right = subject.call(problem), subject.answer(problem)
        if out.dtype != dtype:
            return Finding(
                f"an output in {_named(dtype)}, as the input", f"an output in {_named(out.dtype)}",
                "dtype", "what calls it gets a format it did not ask for",
            )  # fmt: skip
        error = (out.double() - right).abs().max().item() / max(right.abs().max().item(), 1e-30)
        if error <= _ERROR[dtype]:
            return None
        if not bool(out.isfinite().all()):
            bad = int((~out.isfinite()).sum())
            return Finding(
                "finite numbers", f"{bad} of {out.numel()} numbers are NaN or infinite", "overflow",
                f"something inside leaves the range of {_named(dtype)}: compute scores and softmax in float32",
            )  # fmt: skip
        if _wrong_anyway(subject, problem):
            return Skip("its values are wrong in float32 already")
        why = (
            "something inside is computed in float32"
            if dtype == torch.float64
            else f"the scores or the softmax are computed in {_named(dtype)}: compute them in float32 and cast at the end"
        )
        return Finding(
            f"an error of at most {_ERROR[dtype]:g} of the largest value", f"an error of {error:.2g}", "precision", why
        )

    return judge


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _wrong_anyway(subject: Subject, problem: Problem) -> bool:
    """Whether the values are off in float32, too: then it is not about the format."""
    wide = replace(subject, dtype=torch.float32)
    again = wide.prepare(problem)
    right = wide.answer(again)
    return not torch.allclose(wide.call(again).double(), right, rtol=0.0, atol=wide.allowed(right))


def _case(dtype: torch.dtype, build: Callable[[Sizes, torch.Generator], Problem], sizes: Sizes, proves: str) -> Case:
    name = _named(dtype)
    return Case(
        name=name, suite="dtypes", build=build, judge=precise(dtype), full=sizes, least=sizes, valid=self_attention,
        needs=(name,), demand=name, proves=proves,
        resembles=("tinygrad/tinygrad#12280",) if dtype == torch.bfloat16 else (),
    )  # fmt: skip


CASES = (
    _case(torch.float64, plain, FULL, "float64 in, float64 out, computed in float64"),
    _case(torch.float16, _spread, _LONG, "float16 in and out, as exact as the format allows"),
    replace(
        _case(torch.float16, _beyond, _BEYOND, "products above 65,504 do not overflow in float16"),
        name="float16-overflow",
    ),
    _case(torch.bfloat16, _spread, _LONG, "bfloat16 in and out, with scores and softmax in float32"),
)
