"""How multi-head attention wants to be called, and where and how its weights are stored: by names, and by trying.

What names leave open (the order of weights, x @ W or x @ W.T, heads apart or side by side, q, k and v in one) is tried on
one small input with random weights: the way in which the output is right, or is what one known fault gives, is the way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyheads.check import guess as of_heads
from manyheads.check.features import FEATURES, check_words
from manyheads.check.guess import Wishes, always_given
from manyheads.check.multihead import state, twins
from manyheads.check.multihead.adapter import HeadsAdapter
from manyheads.check.multihead.construct import BUILT, SMALL
from manyheads.check.multihead.problem import Multihead, natural, remade, whole_answer, with_weights
from manyheads.check.multihead.signature import Call, read_call
from manyheads.check.multihead.steps import settle_cache
from manyheads.check.multihead.storage import Slot, bias_pattern, only_held, patterns
from manyheads.check.multihead.subject import MultiheadSubject, caller
from manyheads.check.multihead.words import orders_of
from manyheads.check.problem import Sizes
from manyheads.check.signature import Roles
from manyheads.check.subject import CallError
from manyheads.errors import CheckpointError

__all__ = ["guess_heads"]

_TRIED = Sizes(batch=2, heads=2, kv_heads=2, queries=4, keys=4, dim=3, value_dim=3)
_MOST_DIAGNOSED = 16  # ways whose output is held against all known faults


def guess_heads(subject: MultiheadSubject, wishes: Wishes) -> tuple[HeadsAdapter, dict[str, str]]:
    """The adapter, and how each part is known. CallError where no way of calling it gives an output of the right shape."""
    check_words(layout=wishes.layout, mask=wishes.mask, features=wishes.no)
    call = _call_of(subject, wishes)
    known = {role: "told" if role in wishes.names else "name" for role in call.names}
    start = _described(subject, call)
    adapter, known["layout"] = _first_of_widths(replace(subject, adapter=start), call, wishes)
    known["weights of"] = "name" if all(meaning.says_weight for meaning in call.weights.values()) else "tried"
    roles = Roles(call.names, call.positional, call.required, call.defaults, ())
    subject = replace(subject, adapter=of_heads.switches(adapter, roles))
    subject = replace(subject, adapter=_lacks(subject))
    settled, known = of_heads.settle(subject, wishes, known)
    assert isinstance(settled, HeadsAdapter)
    return _tried(replace(subject, adapter=settled)), known


def _tried(subject: MultiheadSubject) -> HeadsAdapter:
    """What only a try tells of projections: a cache, and heads that are not as wide as x divided by their number."""
    adapter = subject.adapter
    lacks = dict(adapter.lacks)
    if "cache" not in lacks:
        adapter = replace(adapter, cache=settle_cache(subject, _problem(subject)))
        if not adapter.cache:
            lacks["cache"] = "a call with a cache gives no output, or no cache back"
    if adapter.kind != "function" and not ({"head_dim", "config"} & set(adapter.built) and subject.plan):
        lacks.setdefault("wide-heads", FEATURES["wide-heads"])
    if "wide-heads" not in lacks:
        try:
            wide = natural(
                replace(_TRIED, batch=_problem(subject).x.shape[0]), torch.Generator().manual_seed(13), extra=2
            )
            subject.call(subject.prepare(wide))
        except CallError as error:
            lacks["wide-heads"] = f"it refuses: {error}"
    return replace(adapter, lacks=lacks)


def _call_of(subject: MultiheadSubject, wishes: Wishes) -> Call:
    function = subject.function if subject.adapter.kind == "function" else caller(subject.thing)
    call = read_call(function, wishes.names, subject.fixed, with_weights=subject.adapter.kind == "function")
    if "lengths" in call.names and "padding" not in call.names:
        names = {("padding" if role == "lengths" else role): name for role, name in call.names.items()}
        required = tuple("padding" if role == "lengths" else role for role in call.required)
        return replace(call, names=names, required=required)
    return call


def _described(subject: MultiheadSubject, call: Call) -> HeadsAdapter:
    """What is known before anything is called."""
    by_lengths = "padding" in call.names and "len" in call.names["padding"].lower()
    built = {role: ", ".join(names) for role, names in _built(subject).items()}
    return replace(
        subject.adapter, names=dict(call.names), positional=call.positional, required=call.required, inputs=call.inputs,
        padding="lengths" if by_lengths else "", built=built, widths=_widths(subject.thing) if not subject.plan else (),
        causal="flag" if "causal" in built else "", norms=_norms(subject),
    )  # fmt: skip


def _norms(subject: MultiheadSubject) -> tuple[str, ...]:
    if subject.thing is None:
        return ()
    widths = _widths(subject.thing) if subject.plan is None else ()
    return state.norms_of(subject.thing, widths[0] if widths else SMALL.d_model)


def _built(subject: MultiheadSubject) -> dict[str, tuple[str, ...]]:
    return {} if subject.plan is None else {**subject.plan.world, **subject.plan.parameters}


def _widths(thing: Any) -> tuple[int, ...]:
    """Width of x, heads and key/value heads of an object that is there, heads 0 where no attribute tells; () for a function."""
    if thing is None:
        return ()

    def told(role: str) -> int | None:
        values = [value for name, value in _attributes(thing) if name.lower() in BUILT[role] and type(value) is int]
        return values[0] if values else None

    heads = told("heads") or 0
    width = told("d_model") or next(
        (min(array.shape) for array in state.arrays_of(thing).values() if len(array.shape) == 2), 0
    )
    if not width or (heads and width % heads):
        raise CheckpointError(f"an object of width {width} and {heads} heads cannot be taken; give the class instead")
    return (width, heads, told("kv_heads") or heads)


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    yield from vars(thing).items()
    for part in thing.children() if isinstance(thing, torch.nn.Module) else ():
        yield from vars(part).items()


def _numbers_of_heads(widths: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The widths, and where they do not tell the heads, all numbers that divide it; one last."""
    if not widths or widths[1]:
        return [widths]
    counts = [heads for heads in range(2, widths[0] + 1) if widths[0] % heads == 0]
    return [(widths[0], heads, heads) for heads in (*counts, 1)]


# the first call


def _first_of_widths(subject: MultiheadSubject, call: Call, wishes: Wishes) -> tuple[HeadsAdapter, str]:
    """The first way of calling it; of an object that does not tell its heads, with the number that makes it right."""
    ways = _numbers_of_heads(subject.adapter.widths)
    if len(ways) == 1:
        return _first_call(subject, call, wishes)
    for widths in ways:
        asked = replace(subject, adapter=replace(subject.adapter, widths=widths))
        adapter, known = _first_call(asked, call, wishes)
        problem = only_held(_problem(replace(asked, adapter=adapter)), adapter.slots)
        problem = replace(problem, causal=adapter.causal == "always")
        found, right = replace(asked, adapter=adapter).call(asked.prepare(problem)).double(), whole_answer(problem)
        if torch.allclose(found, right, rtol=0.0, atol=asked.allowed(right), equal_nan=True):
            return adapter, known
    raise CheckpointError(
        "an object must say its number of heads in an attribute (num_heads, n_head, h, ...), and with none it is right; give the "
        "class instead"
    )


def _first_call(subject: MultiheadSubject, call: Call, wishes: Wishes) -> tuple[HeadsAdapter, str]:
    """Framework, layout and slots: the first way that is right, else one that a known fault explains, else one that works."""
    errors: list[CallError] = []
    working: list[tuple[HeadsAdapter, Multihead, Tensor]] = []
    for adapter, problem in _ways(subject, call, wishes):
        asked = replace(subject, adapter=adapter)
        try:
            found = asked.call(asked.prepare(problem))
        except CallError as error:
            errors.append(error)
            continue
        for causal in _maybe_causal(adapter):
            right = whole_answer(replace(problem, causal=causal))
            if torch.allclose(found.double(), right, rtol=0.0, atol=asked.allowed(right), equal_nan=True):
                return _with_causal(adapter, causal=causal), "told" if wishes.layout else "tried"
        working.append((adapter, problem, found))
    if not working:
        raise (
            next((error for error in errors if error.line is not None), errors[0])
            if errors
            else CheckpointError(f"{subject.name} has no weights that could be W_q, W_k, W_v and W_o")
        )
    if (explained := _explained(subject, working)) is not None:
        return explained, "told" if wishes.layout else "tried"
    for adapter, problem, _ in working:
        if has_positions(replace(subject, adapter=adapter), problem):
            raise CheckpointError(
                f"what {subject.name} gives depends on where tokens stand (rotary positions, perhaps), and nothing is known of "
                "that; check its attention without positions"
            )
    return working[0][0], "told" if wishes.layout else "tried"


def _explained(subject: MultiheadSubject, working: list[tuple[HeadsAdapter, Multihead, Tensor]]) -> HeadsAdapter | None:
    """The first way whose output a known fault gives."""
    for adapter, problem, found in working[:_MOST_DIAGNOSED]:
        for causal in _maybe_causal(adapter):
            asked = replace(problem, causal=causal)
            if twins.diagnose(asked, found, subject.allowed(whole_answer(asked))) is not None:
                return _with_causal(adapter, causal=causal)
    return None


def has_positions(subject: MultiheadSubject, problem: Multihead) -> bool:
    """Whether it is right where all scores are equal, and the last token's output moves when those before it change places.

    Rotary positions turn q and k, and queries of zero stay zero; attention without positions takes what comes before as a
    set, also where its scores are wrong.
    """
    if problem.memory is not None:
        return False
    flat = with_weights(problem, w_q=torch.zeros_like(problem.weights["w_q"]))
    flat = with_weights(flat, **({"b_q": torch.zeros_like(flat.weights["b_q"])} if "b_q" in flat.weights else {}))
    order = torch.tensor([1, 0, *range(2, problem.x.shape[1])])
    try:
        equal, before, after = (
            subject.call(subject.prepare(asked)).double()
            for asked in (flat, problem, remade(problem, x=problem.x[:, order]))
        )
    except CallError:
        return False
    right = any(
        torch.allclose(equal, whole_answer(replace(flat, causal=causal)), atol=subject.allowed(equal))
        for causal in (False, True)
    )
    return right and not torch.allclose(before[:, :, -1], after[:, :, -1], atol=1e-4)


def _maybe_causal(adapter: HeadsAdapter) -> tuple[bool, ...]:
    """Whether it may be causal without being asked."""
    return (False,) if adapter.causal == "flag" or "causal" in adapter.names else (False, True)


def _with_causal(adapter: HeadsAdapter, *, causal: bool) -> HeadsAdapter:
    return replace(adapter, causal="always") if causal else adapter


def _ways(subject: MultiheadSubject, call: Call, wishes: Wishes) -> Iterator[tuple[HeadsAdapter, Multihead]]:
    layouts = [wishes.layout] if wishes.layout else ["btd", "tbd", "td"]
    for framework in of_heads.frameworks(subject):
        plain = replace(subject.adapter, framework=framework)
        several = (plain, *always_given(plain, wishes))
        for adapter in (*several, *(replace(way, single=True) for way in several)):
            for layout in layouts:
                placed = replace(adapter, layout=layout, out_layout=layout)
                problem = _problem(replace(subject, adapter=placed))
                try:
                    ways = _slots(replace(subject, adapter=placed), call, problem)
                except CallError:  # a lazy layer that cannot be called so: the call itself will say why
                    ways = [()]
                for slots in ways:
                    problem = _problem(replace(subject, adapter=replace(placed, slots=slots)))
                    idle = _idle(replace(subject, adapter=placed), slots, problem)
                    asked = only_held(problem, slots)
                    for residual in (False, True) if placed.norms else (False,):
                        yield replace(placed, slots=slots, idle=idle, residual=residual), asked


def _problem(subject: MultiheadSubject) -> Multihead:
    sizes = subject.fit(_TRIED)
    if subject.adapter.widths:
        sizes = replace(sizes, dim=subject.adapter.widths[0] // sizes.heads)
    cross = subject.adapter.inputs != "x"
    problem = natural(sizes, torch.Generator().manual_seed(13), biases=True, cross=cross)
    return replace(problem, source=problem.memory) if subject.adapter.inputs == "qkv" else problem


def _slots(subject: MultiheadSubject, call: Call, problem: Multihead) -> Iterable[tuple[Slot, ...]]:
    if subject.adapter.kind == "function":
        return _slots_of_call(call)
    return list(state.slots_of(subject.ready_object(problem), problem))


def _idle(subject: MultiheadSubject, slots: tuple[Slot, ...], problem: Multihead) -> tuple[str, ...]:
    """The weights that are none of those that are known: they must be square, and are made to change nothing."""
    if subject.adapter.kind == "function" or not slots:
        return ()
    thing = subject.ready_object(problem)
    arrays, strange = state.arrays_of(thing), state.strange_arrays(thing, slots, problem.q.shape[1])
    square = {
        name for name in strange if len(arrays[name].shape) == 2 and arrays[name].shape[0] == arrays[name].shape[1]
    }
    stems = {name.rpartition(".")[0] for name in square}
    not_known = [name for name in strange if name not in square and name.rpartition(".")[0] not in stems]
    if not_known:
        raise CheckpointError(
            f"{subject.name} has weights that are not understood: {', '.join(not_known[:4])}; beside W_q, W_k, W_v, W_o and "
            "their biases nothing is known of"
        )
    return tuple(strange)


def _slots_of_call(call: Call) -> Iterator[tuple[Slot, ...]]:
    """x @ W for all, x @ W.T for all, then with the heads apart."""
    named = {name: meaning.role for name, meaning in call.weights.items() if not meaning.is_bias}
    for roles in itertools.product(*(orders_of(role) for role in named.values())):
        yield from _slots_in_order(call, dict(zip(named, roles, strict=True)))


def _slots_in_order(call: Call, weights: dict[str, str]) -> Iterator[tuple[Slot, ...]]:
    biases = {name: meaning.role for name, meaning in call.weights.items() if meaning.is_bias}
    for axes, axes_out in ((2, 2), (3, 3), (3, 2), (4, 2)):
        for way in range(len(patterns("q", axes)) if axes < 4 else 1):
            choices = {name: _choices(role, axes_out if role == "o" else axes, way) for name, role in weights.items()}
            for chosen in itertools.product(*choices.values()):
                by_role = {weights[name]: pattern for name, pattern in zip(choices, chosen, strict=True)}
                made = [Slot(name=name, role=weights[name], pattern=by_role[weights[name]]) for name in choices]
                made += [
                    Slot(name=name, role=role, pattern=_bias_beside(role, by_role), is_bias=True)
                    for name, role in biases.items()
                ]
                yield tuple(made)


def _choices(role: str, axes: int, way: int) -> tuple[str, ...]:
    ways = patterns(role, axes)
    if len(role) > 1:
        return ways[way::2] if axes == 2 else ways
    return (ways[way],) if axes == 2 and role != "o" else ways if axes == 3 and role == "o" else ways[way : way + 1]


def _bias_beside(role: str, by_role: dict[str, str]) -> str:
    if role == "o":
        return "n"
    beside = by_role.get(role) or next((pattern for roles, pattern in by_role.items() if role in roles), "m (h d)")
    return bias_pattern(beside, 2 if "(" not in beside else 1) if role in by_role else "(h d)"


def _lacks(subject: MultiheadSubject) -> HeadsAdapter:
    """What is known not to be there before it is tried."""
    adapter = subject.adapter
    lacks = {
        **adapter.lacks, "onnx": "ONNX's cases are put to functions of q, k and v",
        "value-width": "all its heads are of one width",
    }  # fmt: skip
    if adapter.inputs == "x" and "memory" not in adapter.names:
        lacks["cross"] = "keys and values come from x"
    if adapter.single:
        lacks["grouped"] = "has one key/value head for all query heads"
    elif adapter.kind != "function" and "kv_heads" not in adapter.built and "config" not in adapter.built:
        lacks |= dict.fromkeys(("grouped", "multi-query"), "has no number of key/value heads")
    if not adapter.has_biases:
        lacks["biases"] = FEATURES["biases"]
    if not {"cache", "use_cache", "offset"} & set(adapter.names):
        lacks["cache"] = FEATURES["cache"]
    if adapter.kind != "class" or "dropout" not in {
        *adapter.built,
        *(["dropout"] if "config" in adapter.built else []),
    }:
        lacks["dropout"] = FEATURES["dropout"]
    return replace(adapter, lacks=lacks)
