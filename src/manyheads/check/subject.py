"""The function under test with its adapter: called with a problem, its answer brought back to (b, h, t, d)."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from manyheads.check.adapter import Adapter, arguments
from manyheads.check.layouts import has_batch, has_heads, packed_shape, unpack
from manyheads.check.problem import Problem, Sizes, answer, answer_weights, seen
from manyheads.check.spell import call_as_code
from manyheads.check.twins import Twin, diagnose

__all__ = ["TOLERANCES", "CallError", "Subject", "UnfitError", "as_tensor", "called", "gradients_of"]

# how far a value may be off, relative to 1 + the largest expected value
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class CallError(Exception):
    """The function raised, or returned something that is no answer; `line` is where in the user's file."""

    def __init__(self, message: str, *, kind: str, line: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.line = line


class UnfitError(CallError):
    """A problem that cannot be put to this subject; the text says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="unfit")


@dataclass(frozen=True)
class Subject:
    """A function and how it is called.

    `fixed`: parameters with one value always. `file`: where the function stands, to tell its lines from others.
    `suspects`: the faults that were found already: they are recognised on another input before others are thought of.
    `beat`: called after each call, as a sign of life.
    """

    function: Callable[..., Any]
    adapter: Adapter
    name: str = "attention"
    file: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    tolerance: float | None = None
    seed: int = 0
    suspects: tuple[str, ...] = ()
    beat: Callable[[], None] = lambda: None

    @property
    def joins_heads(self) -> bool:
        """Whether an output projection mixes the heads of a token."""
        return False

    def fit(self, sizes: Sizes, *, projected: bool = False) -> Sizes:  # noqa: ARG002 of those that project
        """`sizes` as far as the layout holds several sequences and heads. `projected`: for a problem of x and weights."""
        if not has_heads(self.adapter.layout, packed=self.adapter.packed):
            sizes = replace(sizes, heads=min(sizes.heads, 1), kv_heads=min(sizes.kv_heads, 1))
        return sizes if has_batch(self.adapter.layout) else replace(sizes, batch=min(sizes.batch, 1))

    def prepare(self, problem: Problem) -> Problem:
        """The problem in the dtype and on the device of the test, causal where the function always is."""
        problem = problem.to(self.dtype, self.device)
        if (
            problem.keep is not None and self.adapter.padding == "lengths"
        ):  # padding is at the end, so many tokens are before it
            keys = torch.arange(problem.keep.shape[-1], device=problem.keep.device)
            problem = replace(problem, keep=keys < problem.keep.sum(-1, keepdim=True))
        return _always_causal(problem) if self.adapter.causal == "always" else problem

    def allowed(self, expected: Tensor, dtype: torch.dtype | None = None) -> float:
        """How far a value may be from `expected`."""
        share = TOLERANCES[dtype or self.dtype] if self.tolerance is None else self.tolerance
        finite = expected[expected.isfinite()]
        return share * (1.0 + (finite.abs().max().item() if finite.numel() else 0.0))

    def arguments(
        self, problem: Problem, *, weights: bool = False, change: Callable[[str, Tensor], Tensor] | None = None
    ) -> dict[str, Any]:
        """parameter -> value for one call."""
        return arguments(self.adapter, problem, weights=weights, change=change)

    def call(self, problem: Problem, *, change: Callable[[str, Tensor], Tensor] | None = None) -> Tensor:
        """The output as (b, h, t, v), in the dtype it came in."""
        return self.answered(problem, self.arguments(problem, change=change))

    def answered(self, problem: Problem, given: Mapping[str, Any]) -> Tensor:
        """The output of a call with these arguments, as (b, h, t, v)."""
        return self.output(self.run(given), problem)

    def weights(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """The output and the returned weights, the weights as they are."""
        made = self.run(self.arguments(problem, weights=True))
        if not isinstance(made, tuple | list) or len(made) < 2:
            raise CallError(f"returned {_kind(made)} where (output, weights) was asked for", kind="no weights")
        return self.output(made, problem), as_tensor(made[1])

    def answer(self, problem: Problem) -> Tensor:
        """What is right."""
        return answer(problem)

    def answer_weights(self, problem: Problem) -> Tensor:
        """The probabilities that are right."""
        return answer_weights(problem)

    def twin(self, problem: Problem, found: Tensor, allowed: float) -> Twin | None:
        """The fault that explains `found`, if there is one of that kind."""
        return diagnose(problem, found, allowed, suspects=self.suspects)

    def with_equal_scores(self, problem: Problem) -> Problem:
        """The problem with queries of zero."""
        return replace(problem, q=torch.zeros_like(problem.q))

    def code(self, problem: Problem) -> str:
        """Python that makes the call again; where it would be long, what the call holds."""
        return call_as_code(self, self.prepare(problem))

    def run(self, given: Mapping[str, Any]) -> Any:
        """What the function returns for these parameters; CallError for whatever it raises."""
        named = {**given, **self.fixed}
        positional = [named.pop(name) for name in self.adapter.positional if name in named]
        with called(self):
            return self.function(*positional, **named)

    def output(self, made: Any, problem: Problem) -> Tensor:
        """The first thing returned, in our layout; CallError where its shape is not the one it should have."""
        out = as_tensor(made[0] if isinstance(made, tuple | list) and len(made) else made)
        b, h, t, _ = problem.q.shape
        wanted = packed_shape((b, h, t, problem.v.shape[-1]), self.adapter.out_layout)
        if tuple(out.shape) != wanted:
            raise CallError(f"an output of shape {tuple(out.shape)}, expected {wanted}", kind="shape")
        return unpack(out, self.adapter.out_layout, h)


def _always_causal(problem: Problem) -> Problem:
    """The problem, causal; a row of which mask and causality together would leave nothing sees its own token."""
    causal = replace(problem, causal=True)
    visible, shown = problem.visible, seen(causal)
    if visible is None or problem.q.shape[2] != problem.k.shape[2]:
        return causal
    left_empty = visible.any(-1, keepdim=True) & ~shown.any(-1, keepdim=True).all((0, 1), keepdim=True).to(
        visible.device
    )
    own = torch.eye(visible.shape[-1], dtype=torch.bool, device=visible.device)
    return replace(causal, visible=visible | (left_empty & own))


def gradients_of(subject: Subject, out: Tensor, leaves: Iterable[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients of a number with respect to the leaves, None where there is none; CallError where the function's own
    backward raises, as after writing into what it needs."""
    with called(subject):
        return torch.autograd.grad(out, list(leaves), allow_unused=True)


@contextlib.contextmanager
def called(subject: Subject) -> Iterator[None]:
    """Around everything that runs the user's code: CallError for whatever it raises, no warnings, a sign of life after."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit in their code is a fault of this case
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == subject.file]
        raise CallError(_said(error), kind=type(error).__name__, line=lines[-1] if lines else None) from error
    finally:
        subject.beat()


def as_tensor(value: Any) -> Tensor:
    """A tensor or an array as a plain tensor on the CPU; CallError for anything else."""
    try:
        made = _plain_tensor(value)
    except Exception as error:
        raise CallError(f"returned {_kind(value)} that cannot be read: {_said(error)}", kind="no array") from error
    if made is not None and not made.is_complex():
        return made
    raise CallError(f"returned {_kind(value)}, expected an array", kind="no array")


def _plain_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        plain = value if type(value) is Tensor else value.as_subclass(Tensor)
        return (plain if plain.layout == torch.strided else plain.to_dense()).cpu()
    if hasattr(value, "__array__"):
        import numpy as np

        array = np.asarray(value)
        if array.dtype.kind in "fiub":
            return torch.from_numpy(np.array(array))
    return None


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _said(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
