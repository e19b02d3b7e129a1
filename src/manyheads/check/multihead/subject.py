"""Multi-head attention under test: a function of x and weights, or an object of a class, with its adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from manyheads.check.adapter import foreign, masks_of, switches_of
from manyheads.check.multihead import state, twins
from manyheads.check.multihead.adapter import HeadsAdapter
from manyheads.check.multihead.construct import Plan, Wanted
from manyheads.check.multihead.problem import Multihead, lift, present, whole_answer, with_weights
from manyheads.check.multihead.storage import stored
from manyheads.check.problem import Problem, Sizes
from manyheads.check.subject import CallError, Subject, UnfitError, as_tensor, called
from manyheads.check.twins import Twin

__all__ = ["MultiheadSubject", "caller"]

MOST_TOKENS = 128  # where x gives the keys as well, a long problem is one of so many tokens


@dataclass(frozen=True)
class MultiheadSubject(Subject):
    """A Subject that is given x and weights. Problems of q, k and v are carried by those (`lift`), and its output is
    brought back to their heads; problems that are Multihead are put as they are, the output (b, 1, t, n).

    `plan`: how an object is made, for a class. `thing`: the object, where there is one. `dropout`: of objects made.
    """

    adapter: HeadsAdapter
    plan: Plan | None = None
    thing: Any = None
    dropout: float = 0.0
    made: dict[Any, Any] = field(default_factory=dict, compare=False)

    @property
    def joins_heads(self) -> bool:
        """W_o mixes them."""
        return True

    def fit(self, sizes: Sizes, *, projected: bool = False) -> Sizes:
        """`sizes` as far as the layout, the inputs and the widths allow."""
        if self.adapter.slots and not self.adapter.packed:
            sizes = replace(sizes, heads=min(sizes.heads, 1), kv_heads=min(sizes.kv_heads, 1))
        if "b" not in self.adapter.layout:
            sizes = replace(sizes, batch=min(sizes.batch, 1))
        if "cross" in self.adapter.lacks and sizes.queries != sizes.keys:
            tokens = min(max(sizes.queries, sizes.keys), MOST_TOKENS)
            sizes = replace(sizes, queries=tokens, keys=tokens)
        if self.adapter.single:
            sizes = replace(sizes, kv_heads=1)
        if not self.adapter.widths:
            return sizes
        width, heads, kv_heads = self.adapter.widths
        head_dim = width // heads
        if projected:
            return replace(sizes, heads=heads, kv_heads=kv_heads, dim=head_dim, value_dim=head_dim)
        held = {"x": 3, "x+memory": 2, "qkv": 1}[self.adapter.inputs]
        dim = max(min(sizes.dim, head_dim // held), 1)
        return replace(sizes, heads=heads, kv_heads=kv_heads, dim=dim, value_dim=min(sizes.value_dim, dim))

    def carried(self, problem: Problem) -> Multihead:
        """The problem as one of x and weights; UnfitError where the object or the inputs do not allow it."""
        if self.adapter.widths and (problem.q.shape[1], problem.k.shape[1]) != self.adapter.widths[1:]:
            raise UnfitError(f"the object has {self.adapter.widths[1]} heads, which this problem has not")
        if isinstance(problem, Multihead):
            if self.adapter.widths and problem.width != self.adapter.widths[0]:
                raise UnfitError(f"the object has a width of {self.adapter.widths[0]}, which this problem has not")
            return problem
        carries = self.adapter.carries
        if carries.inputs == "x" and "memory" in self.adapter.names and problem.q.shape[2] != problem.k.shape[2]:
            carries = replace(carries, inputs="x+memory")
        made = lift(problem, carries)
        if made is None:
            raise UnfitError("its heads are too narrow to carry q, k and v apart in x")
        return made

    def arguments(
        self, problem: Problem, *, weights: bool = False, change: Callable[[str, Tensor], Tensor] | None = None
    ) -> dict[str, Any]:
        """parameter -> value for one call: inputs, weights of a function, masks, switches."""
        adapter, whole = self.adapter, self.carried(problem)
        tokens = dict(zip("qkv", whole.inputs, strict=True))
        inputs = {"x": tokens["q"]}
        if adapter.inputs == "qkv":
            inputs = tokens
        elif adapter.inputs == "x+memory" or whole.memory is not None:
            inputs["memory"] = tokens["k"]
        values: dict[str, Any] = {role: self._laid_out(role, x, change) for role, x in inputs.items()}
        values |= masks_of(adapter, whole) | switches_of(adapter, whole, weights=weights)
        values |= {"d_model": whole.width, "head_dim": whole.head_dim}
        given = {adapter.names[role]: value for role, value in values.items() if role in adapter.names}
        if adapter.kind == "function":
            try:
                given |= {slot.name: stored(slot, whole) for slot in adapter.slots}
            except ValueError as error:
                raise UnfitError(str(error)) from None
        return {name: _each_foreign(value, adapter) for name, value in given.items()}

    def _laid_out(self, role: str, x: Tensor, change: Callable[[str, Tensor], Tensor] | None) -> Tensor:
        layout = self.adapter.layout
        x = x.transpose(0, 1) if layout == "tbd" else x[0] if layout == "td" else x
        x = x.clone(memory_format=torch.contiguous_format)
        return x if change is None else change("q" if role == "x" else "k" if role == "memory" else role, x)

    def call(self, problem: Problem, *, change: Callable[[str, Tensor], Tensor] | None = None) -> Tensor:
        """The output as judges read it."""
        whole = self.carried(problem)
        return self.answered(whole, self.arguments(whole, change=change))

    def weights(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """The output and the returned weights, the weights as they are."""
        whole = self.carried(problem)
        made = self.run_on(whole, self.arguments(whole, weights=True))
        rest = [] if not isinstance(made, tuple | list) else [item for item in made[1:] if hasattr(item, "shape")]
        if not rest:
            raise CallError("returned no weights where they were asked for", kind="no weights")
        return self.output(made, whole), as_tensor(rest[0])

    def answer(self, problem: Problem) -> Tensor:
        """What is right."""
        return whole_answer(problem) if isinstance(problem, Multihead) else super().answer(problem)

    def twin(self, problem: Problem, found: Tensor, allowed: float) -> Twin | None:
        """The fault that explains `found`, if there is one of that kind."""
        return twins.diagnose(self.carried(problem), found, allowed, suspects=self.suspects)

    def with_equal_scores(self, problem: Problem) -> Problem:
        """The problem with queries of zero."""
        if not isinstance(problem, Multihead):
            return super().with_equal_scores(problem)
        zeros = {name: torch.zeros_like(problem.weights[name]) for name in ("w_q", "b_q") if name in problem.weights}
        return with_weights(problem, **zeros)

    def code(self, problem: Problem) -> str:
        """Python that makes the call again."""
        from manyheads.check.multihead.spell import heads_as_code

        return heads_as_code(self, self.carried(self.prepare(problem)))

    def answered(self, problem: Problem, given: Mapping[str, Any]) -> Tensor:
        """The output of a call with these arguments, as judges read it."""
        whole = self.carried(problem)
        return self.output(self.run_on(whole, given), whole)

    def run_on(self, problem: Multihead, given: Mapping[str, Any]) -> Any:
        """What comes of a call, with the problem's weights where they belong."""
        thing = None if self.adapter.kind == "function" else self.ready_object(problem)
        return self.run_in(thing, problem, given)

    def run_in(self, thing: Any, problem: Multihead, given: Mapping[str, Any]) -> Any:
        """The same in an object that is there; None for a function."""
        if thing is None:
            return self.run(given)
        state.assign(state.arrays_of(thing), self.adapter.slots, problem)
        return replace(self, function=caller(thing)).run(given)

    def made_as(self, wanted: Wanted, given: Mapping[str, Any]) -> Any:
        """What comes of a call of an object made so, with the weights that it was made with."""
        assert self.plan is not None
        with called(self):
            thing = self._moved(self.plan.make(wanted))
        return replace(self, function=caller(thing)).run(given)

    def with_leaves(self, problem: Multihead) -> tuple[Tensor, dict[str, Tensor]]:
        """The output, and by name or path the tensors whose gradients can be asked: x and the weights."""
        given = self.arguments(problem)
        if self.adapter.kind == "function":
            places = {
                slot.name: given[slot.name] for slot in self.adapter.slots if isinstance(given[slot.name], Tensor)
            }
            return self.answered(problem, given), {"x": problem.x, **places}
        thing = self.ready_object(problem)
        arrays = state.arrays_of(thing)
        names = [slot.name.format(head) for slot in self.adapter.slots for head in range(problem.q.shape[1])]
        places = {name: arrays[name] for name in dict.fromkeys(names) if getattr(arrays[name], "requires_grad", False)}
        return self.answered(problem, given), {"x": problem.x, **places}

    def object_for(self, problem: Problem) -> Any:
        """The object for a problem's sizes, in evaluation, in the dtype and on the device of the test."""
        if self.plan is None:
            return self._moved(self.thing)
        wanted = self.wanted(self.carried(problem))
        self.plan.set_world(wanted)
        key = (wanted, self.dtype)
        if key not in self.made:
            with called(self):
                self.made[key] = self._moved(self.plan.make(wanted))
        return self.made[key]

    def ready_object(self, problem: Multihead) -> Any:
        """The same, its weights there: a lazy layer makes them when it is first called."""
        thing = self.object_for(problem)
        state.set_idle(state.arrays_of(thing), self.adapter.idle)
        if isinstance(thing, nn.Module) and any(isinstance(p, UninitializedParameter) for p in thing.parameters()):
            with torch.no_grad(), called(self):
                caller(thing)(**self.arguments(problem), **self.fixed)
        return thing

    def wanted(self, problem: Multihead) -> Wanted:
        """What the class is asked for."""
        (batch, heads, tokens, head_dim), kv_heads, keys = problem.q.shape, problem.k.shape[1], problem.k.shape[2]
        return Wanted(
            d_model=problem.width, heads=heads, kv_heads=kv_heads, head_dim=head_dim, batch=max(batch, 1),
            max_len=max(16, tokens, keys), dropout=self.dropout,
            causal=problem.causal and self.adapter.causal == "flag" and "causal" in self.adapter.built,
        )  # fmt: skip

    def _moved(self, thing: Any) -> Any:
        state.without_norms(thing, self.adapter.norms)
        return thing.eval().to(device=self.device, dtype=self.dtype) if isinstance(thing, nn.Module) else thing

    def output(self, made: Any, problem: Problem) -> Tensor:
        """The first thing returned that has the shape of an output; CallError where none has."""
        assert isinstance(problem, Multihead)
        things = list(made) if isinstance(made, tuple | list) and len(made) else [made]
        outs = [as_tensor(thing) for thing in things[:1]]
        outs += [as_tensor(thing) for thing in things[1:] if hasattr(thing, "shape")]
        b, t, n = problem.q.shape[0], problem.q.shape[2], problem.weights["w_o"].shape[-1]
        wanted = {"btd": (b, t, n), "tbd": (t, b, n), "td": (t, n)}[self.adapter.layout]
        out = next((out for out in outs if tuple(out.shape) == wanted), None)
        if out is None:
            raise CallError(f"an output of shape {tuple(outs[0].shape)}, expected {wanted}", kind="shape")
        out = out.transpose(0, 1) if self.adapter.layout == "tbd" else out[None] if self.adapter.layout == "td" else out
        return present(out - problem.x.to(out) if self.adapter.residual else out, problem)


def caller(thing: Any) -> Callable[..., Any]:
    """What is called of an object."""
    return thing if callable(thing) else thing.forward


def _each_foreign(value: Any, adapter: HeadsAdapter) -> Any:
    return [foreign(item, adapter) for item in value] if isinstance(value, list) else foreign(value, adapter)
